"""The writes batch: pending writes of one checkpoint as one Parquet object, and how batches merge.

Column ids are fixed, descriptions and the law are in FORMAT.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa

from manifests.structure import to_json
from manifests.tables import TableFormat, column, decode_rows, encode_table

FORMAT = 1


class WriteRow(NamedTuple):
    """One pending write. `idx` is its place in the task's list, or the negative number of a special channel."""

    task_id: str
    task_path: str
    idx: int
    channel: str
    type: str
    value: bytes


SCHEMA = pa.schema(
    [
        column(1, "namespace", pa.string()),
        column(2, "checkpoint_id", pa.string()),
        column(3, "task_id", pa.string()),
        column(4, "task_path", pa.string()),
        column(5, "idx", pa.int32()),
        column(6, "channel", pa.string()),
        column(7, "type", pa.string()),
        column(8, "value", pa.binary()),
        column(9, "value_json", pa.string(), nullable=True),
    ]
)


_BATCH = TableFormat(
    name="writes",
    version=FORMAT,
    schema=SCHEMA,
    # `value_json` is for other readers: nothing is restored from it.
    stored=pa.schema(list(SCHEMA)[:8]),
    advice="restore the object",
)


def encode_writes(rows: Sequence[WriteRow], *, namespace: str, checkpoint_id: str) -> bytes:
    """The bytes of a batch. `rows` keep their order: within a batch, earlier rows came first."""
    return encode_table(_BATCH, [(namespace, checkpoint_id, *row, to_json(row.type, row.value)) for row in rows])


def decode_writes(data: bytes, *, key: str, namespace: str, checkpoint_id: str) -> list[WriteRow]:
    """The rows of a batch, in its order. `key` is for messages.

    Raises `UnsupportedFormatError`, and `CorruptObjectError` also where the batch is another checkpoint's.
    """
    rows = decode_rows(_BATCH, data, key=key)
    named = {row[:2] for row in rows}
    if named != {(namespace, checkpoint_id)}:
        raise _BATCH.corrupt(key, f"it is another checkpoint's, of (namespace, id) {sorted(named)}")
    return [WriteRow(*row[2:]) for row in rows]


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
