"""The manifest: an index over immutable checkpoint objects, never the truth. The truth is the listing of objects.

A thread's manifest is the union of its segments, each a Parquet file with one row per checkpoint. A row counts only
where a listing shows its object with its ETag. Segments only ever add, so merging two is a set union. The law is
FORMAT.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from manifests.checkpoints import Header, Typed
from manifests.tables import NAMES, TableFormat, column, decode_table, encode_table, tuples_in

FORMAT = 1


class Row(NamedTuple):
    """What the manifest says of a checkpoint, all of it from the object itself but its size, ETag and SHA-256.

    `step`, `source`, `run_id` and `metadata_json` are None where the serializer encrypts. `channels` have a value,
    `values` are the value objects that these need; `snapshots` to `advanced` are the header's.
    """

    namespace: str
    checkpoint_id: str
    parent_id: str | None = None
    depth: int | None = None
    ts: str | None = None
    v: int | None = None
    step: int | None = None
    source: str | None = None
    run_id: str | None = None
    metadata_type: str = ""
    metadata: bytes = b""
    metadata_thread_id: bool = False
    metadata_json: str | None = None
    size: int = 0
    etag: str = ""
    sha256: bytes | None = None
    channels: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    snapshots: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    unstored: tuple[str, ...] = ()
    advanced: tuple[str, ...] = ()

    @property
    def typed_metadata(self) -> Typed:
        return Typed(self.metadata_type, self.metadata)


SCHEMA = pa.schema(
    [
        column(1, "namespace", pa.string()),
        column(2, "checkpoint_id", pa.string()),
        column(3, "parent_id", pa.string(), nullable=True),
        column(4, "depth", pa.int64(), nullable=True),
        column(5, "ts", pa.string(), nullable=True),
        column(6, "v", pa.int64(), nullable=True),
        column(7, "step", pa.int64(), nullable=True),
        column(8, "source", pa.string(), nullable=True),
        column(9, "run_id", pa.string(), nullable=True),
        column(10, "metadata_type", pa.string()),
        column(11, "metadata", pa.binary()),
        column(12, "metadata_thread_id", pa.bool_()),
        column(13, "metadata_json", pa.string(), nullable=True),
        column(14, "size", pa.int64()),
        column(15, "etag", pa.string()),
        column(16, "sha256", pa.binary(), nullable=True),
        column(17, "channels", NAMES),
        column(18, "values", NAMES),
        column(19, "snapshots", NAMES),
        column(20, "counted", NAMES),
        column(21, "unstored", NAMES),
        column(22, "advanced", NAMES),
    ]
)

_SEGMENT = TableFormat(
    name="manifest",
    version=FORMAT,
    schema=SCHEMA,
    stored=SCHEMA,
    advice="delete it, the manifest is built again",
)


def row_of(
    header: Header, *, size: int, etag: str, sha256: bytes | None, described: dict[str, Any], metadata_json: str | None
) -> Row:
    """The row of a checkpoint. `described` is its decoded metadata, empty where the serializer encrypts."""
    structure = header.structure
    return Row(
        namespace=header.namespace,
        checkpoint_id=header.checkpoint_id,
        parent_id=header.parent_id,
        depth=header.depth,
        ts=_only(str, structure.get("ts")),
        v=_only(int, structure.get("v")),
        step=_only(int, described.get("step")),
        source=_only(str, described.get("source")),
        run_id=_only(str, described.get("run_id")),
        metadata_type=header.metadata.type,
        metadata=header.metadata.data,
        metadata_thread_id=header.metadata_thread_id,
        metadata_json=metadata_json,
        size=size,
        etag=etag,
        sha256=sha256,
        channels=tuple(header.channels),
        values=header.values,
        snapshots=header.snapshots,
        counted=header.counted,
        unstored=header.unstored,
        advanced=header.advanced,
    )


def _only(kind: type, value: Any) -> Any:
    """The value where it is of the kind and, a number, fits its column."""
    if isinstance(value, bool) or not isinstance(value, kind):
        return None
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**63 else None
    return str(value).encode(errors="replace").decode()


def encode_segment(rows: Sequence[Row]) -> bytes:
    return encode_table(_SEGMENT, rows)


def decode_segment(data: bytes, *, key: str) -> pa.Table:
    """A segment's table. Raises `UnsupportedFormatError` and `CorruptObjectError`."""
    return decode_table(_SEGMENT, data, key=key)


def rows_in(table: pa.Table, columns: Sequence[str] = tuple(Row._fields)) -> Iterator[Row]:
    """The rows of a segment, one record batch in memory as objects at a time. Fields not in `columns` stay empty."""
    for values in tuples_in(table.select(columns)):
        yield Row(**dict(zip(columns, values, strict=True)))
