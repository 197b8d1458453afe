"""Parquet objects as they must not be, and as another writer may make them: for the tests of all three kinds."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from manifests import CorruptObjectError, UnsupportedFormatError

# A byte for each change: one bit at the low end, the middle and the high end, and all of them.
CHANGES = (0x01, 0x10, 0x80, 0xFF)


def read_flipped(body: bytes, read: Callable[[bytes], Any], *, every: int = 1) -> tuple[float, list[Any]]:
    """Read `body` with each byte changed in turn: what part of it was refused, and what the rest gave.

    Of all changes of all bytes, `every` so many-th is tried.
    """
    refused, found = 0, []
    for damaged in islice(_flipped(body), None, None, every):
        try:
            found.append(read(damaged))
        except (CorruptObjectError, UnsupportedFormatError):
            refused += 1
    return refused / (refused + len(found)), found


def _flipped(body: bytes) -> Iterator[bytes]:
    for place in range(len(body)):
        for change in CHANGES:
            yield body[:place] + bytes([body[place] ^ change]) + body[place + 1 :]


def garbage_of(data: bytes) -> tuple[bytes, ...]:
    """Bytes that are no Parquet file, more and more like one."""
    return data, b"PAR1" + data + b"PAR1", b"PAR1" + data + len(data).to_bytes(4, "little") + b"PAR1"


def table_in(body: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(body))


def metadata_in(body: bytes) -> dict[str, str]:
    return {key.decode(): value.decode() for key, value in pq.read_metadata(io.BytesIO(body)).metadata.items()}


def rewritten(body: bytes, *, table: pa.Table | None = None, metadata: dict[str, str] | None = None) -> bytes:
    """The object, written anew with pyarrow's defaults, with another table or other metadata."""
    table = table_in(body) if table is None else table
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, table.schema.remove_metadata(), store_schema=False) as writer:
        writer.write_table(table.replace_schema_metadata(None))
        writer.add_key_value_metadata(metadata_in(body) if metadata is None else metadata)
    return sink.getvalue()


def columns_of(body: bytes) -> list[tuple[int, str, str, bool]]:
    """Id, name, type and nullability of each column, as plain pyarrow sees them."""
    return [
        (int(field.metadata[b"PARQUET:field_id"]), field.name, type_of(field), field.nullable)
        for field in table_in(body).schema
    ]


def type_of(field: pa.Field) -> str:
    """The type as FORMAT.md writes it."""
    return f"list of {field.type.value_type}" if pa.types.is_list(field.type) else str(field.type)


def others_of(table: pa.Table, *, text: str, number: pa.DataType) -> list[pa.Table]:
    """The table with a text column that is missing, renamed, doubled, of another type, null; and without rows."""
    place = table.column_names.index(text)
    values = table[text]
    return [
        table.drop_columns([text]),
        table.rename_columns([*table.column_names[:place], "another", *table.column_names[place + 1 :]]),
        table.append_column(text, values),
        table.set_column(place, text, pa.array([1] * len(table), number)),
        table.set_column(place, text, values.cast(pa.binary())),
        table.set_column(place, text, pa.array([[one] for one in values.to_pylist()])),
        table.set_column(place, text, pa.array([None] * len(table), pa.string())),
        table.set_column(place, text, pa.array(["other"] * len(table))),
        table.slice(0, len(table) - 1),
        pa.concat_tables([table, table]),
    ]
