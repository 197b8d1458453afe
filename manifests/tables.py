"""Parquet tables of the archive's own: manifest segments and removal records.

Each says its kind and format in its key-value metadata, where a reader looks first, and has page checksums.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from manifests.errors import CorruptObjectError, UnsupportedFormatError


def column(number: int, name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    """A column with a fixed id, as FORMAT.md lists it."""
    return pa.field(name, kind, nullable=nullable, metadata={b"PARQUET:field_id": str(number).encode()})


NAMES = pa.list_(pa.field("element", pa.string(), nullable=False))


def table_of(schema: pa.Schema, rows: Sequence[Iterable[object]]) -> pa.Table:
    columns = [pa.array(values, schema.field(number).type) for number, values in enumerate(zip(*rows, strict=True))]
    return pa.Table.from_arrays(columns, schema=schema)


def write_table(table: pa.Table, schema: pa.Schema, *, kind: str, version: int) -> bytes:
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression="zstd", store_schema=False, write_page_checksum=True) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({f"s3_saver.{kind}.format": str(version)})
    return sink.getvalue()


def read_table(data: bytes, schema: pa.Schema, *, kind: str, version: int, key: str, advice: str) -> pa.Table:
    """The table in `data`. `key` and `advice` are for messages.

    Raises `UnsupportedFormatError` and `CorruptObjectError`.
    """
    try:
        file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
        found = (file.metadata.metadata or {}).get(f"s3_saver.{kind}.format".encode(), b"none").decode(errors="replace")
        if found != str(version):
            raise UnsupportedFormatError(
                f"reading {key}: {kind} format {found}, this release reads format {version}; upgrade the package"
            )
        return file.read(columns=schema.names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptObjectError(f"reading {key}: no readable Parquet file ({error}); {advice}") from error
