"""The writes batch: pending writes of one checkpoint as one Parquet object, and how batches merge.

The file has neither dictionaries, statistics nor an Arrow schema: a batch of two short messages then takes 4 kB, with
the defaults 17 kB. Column ids are fixed, descriptions and the law are in FORMAT.md.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import ormsgpack
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.errors import CorruptObjectError, UnsupportedFormatError
from manifests.structure import to_json

FORMAT = 1
_VERSION_KEY = b"s3_saver.writes.format"
_DIGEST_KEY = b"s3_saver.writes.sha256"
_PLAIN: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": False,
    "write_statistics": False,
    "store_schema": False,
    "write_page_checksum": True,
}


class WriteRow(NamedTuple):
    """One pending write. `idx` is its place in the task's list, or the negative number of a special channel."""

    task_id: str
    task_path: str
    idx: int
    channel: str
    type: str
    value: bytes


def _column(number: int, name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable, metadata={b"PARQUET:field_id": str(number).encode()})


SCHEMA = pa.schema(
    [
        _column(1, "namespace", pa.string()),
        _column(2, "checkpoint_id", pa.string()),
        _column(3, "task_id", pa.string()),
        _column(4, "task_path", pa.string()),
        _column(5, "idx", pa.int32()),
        _column(6, "channel", pa.string()),
        _column(7, "type", pa.string()),
        _column(8, "value", pa.binary()),
        _column(9, "value_json", pa.string(), nullable=True),
    ]
)


# The columns that writes are restored from; `value_json` is for other readers.
_STORED = pa.schema(list(SCHEMA)[:8])


def encode_writes(rows: Sequence[WriteRow], *, namespace: str, checkpoint_id: str) -> bytes:
    """The bytes of a batch. `rows` keep their order: within a batch, earlier rows came first."""
    assert rows, "a batch has at least one write"
    columns: list[Any] = [
        pa.array([namespace] * len(rows), pa.string()),
        pa.array([checkpoint_id] * len(rows), pa.string()),
        *(pa.array(column, SCHEMA.field(2 + number).type) for number, column in enumerate(zip(*rows, strict=True))),
        pa.array([to_json(row.type, row.value) for row in rows], pa.string()),
    ]
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, SCHEMA, **_PLAIN) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=SCHEMA))
        writer.add_key_value_metadata(
            {_VERSION_KEY.decode(): str(FORMAT), _DIGEST_KEY.decode(): _digest(namespace, checkpoint_id, rows)}
        )
    return sink.getvalue()


def _digest(namespace: str, checkpoint_id: str, rows: Sequence[WriteRow]) -> str:
    """SHA-256 in hex of what the batch says. Parquet itself has no checksum that covers its footer."""
    return hashlib.sha256(ormsgpack.packb([namespace, checkpoint_id, [list(row) for row in rows]])).hexdigest()


def decode_writes(data: bytes, *, key: str, namespace: str, checkpoint_id: str) -> list[WriteRow]:
    """The rows of a batch, in its order. `key` is for messages.

    Raises `UnsupportedFormatError`, and `CorruptObjectError` also where the batch is another checkpoint's.
    """
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        stored = file.metadata.metadata or {}
        if _VERSION_KEY not in stored:
            raise CorruptObjectError(f"reading {key}: it does not say that it is a writes batch; restore the object")
        version = stored[_VERSION_KEY].decode(errors="replace")
        if version != str(FORMAT):
            raise UnsupportedFormatError(
                f"reading {key}: writes format {version}, this release reads format {FORMAT}; upgrade the package"
            )
        table = file.read(columns=_STORED.names)
        columns = [column.to_pylist() for column in table.columns]
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptObjectError(f"reading {key}: no readable Parquet file ({error}); restore the object") from error
    if (table.schema.names, table.schema.types) != (_STORED.names, _STORED.types):
        raise CorruptObjectError(
            f"reading {key}: it has the columns {table.schema.names}, a batch has {_STORED.names}; restore the object"
        )
    rows = [WriteRow(*row) for row in zip(*columns[2:], strict=True)]
    named = set(zip(*columns[:2], strict=True)) == {(namespace, checkpoint_id)}
    if not named or stored.get(_DIGEST_KEY, b"").decode(errors="replace") != _digest(namespace, checkpoint_id, rows):
        raise CorruptObjectError(
            f"reading {key}: its digest does not match; it is damaged, or another checkpoint's; restore the object"
        )
    return rows


def merge_writes(batches: Iterable[Iterable[WriteRow]]) -> list[WriteRow]:
    """The writes that stand, in the order that LangGraph replays them: by (task_path, task_id, idx).

    `batches` come in the order of their names. For `idx >= 0` the first write of (task_id, idx) stands, for the
    special channels (`idx < 0`) the last.
    """
    standing: dict[tuple[str, int], WriteRow] = {}
    for batch in batches:
        for row in batch:
            if row.idx < 0 or (row.task_id, row.idx) not in standing:
                standing[row.task_id, row.idx] = row
    return sorted(standing.values(), key=lambda row: (row.task_path, row.task_id, row.idx))
