"""The archive's Parquet objects: writes batches, manifest segments and removal records are made and opened here.

Each says in its key-value metadata what it is and in which format, where a reader looks first, and the SHA-256 of its
rows. Page checksums alone would not do: they leave the footer uncovered, and a flipped bit there leads to another
column's pages, or to fewer of them, without any error. The law is the section "Parquet objects" of FORMAT.md.

The files have neither dictionaries, statistics nor an Arrow schema: two short messages then take 2 to 4 kB, with the
defaults 17 kB, and ten thousand rows of a manifest are smaller too.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import ormsgpack
import pyarrow as pa
import pyarrow.parquet as pq

from manifests.errors import CorruptObjectError, UnsupportedFormatError

NAMES = pa.list_(pa.field("element", pa.string(), nullable=False))

_PLAIN: dict[str, Any] = {
    "compression": "zstd",
    "use_dictionary": False,
    "write_statistics": False,
    "store_schema": False,
    "write_page_checksum": True,
}
# Rows that are in memory as objects at a time.
_BATCH_ROWS = 1024
# From this size on columns are decoded by several threads; handing a small object's to them takes longer than that.
_THREADS_BYTES_MIN = 2**20


@dataclass(frozen=True, slots=True)
class TableFormat:
    """A kind of Parquet object.

    `schema` is what is written, `stored` its first columns, which are read and have the digest: those after them are
    for other readers. `advice` says what to do with a damaged object.
    """

    name: str
    version: int
    schema: pa.Schema
    stored: pa.Schema
    advice: str

    @property
    def version_key(self) -> str:
        return f"s3_saver.{self.name}.format"

    @property
    def digest_key(self) -> str:
        return f"s3_saver.{self.name}.sha256"

    def corrupt(self, key: str, what: str) -> CorruptObjectError:
        return CorruptObjectError(f"reading {key}: {what}; {self.advice}")


def column(number: int, name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    """A column with a fixed id, as FORMAT.md lists it."""
    return pa.field(name, kind, nullable=nullable, metadata={b"PARQUET:field_id": str(number).encode()})


def table_of(schema: pa.Schema, rows: Sequence[Iterable[object]]) -> pa.Table:
    columns = [pa.array(values, schema.field(number).type) for number, values in enumerate(zip(*rows, strict=True))]
    return pa.Table.from_arrays(columns, schema=schema)


def tuples_in(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """The rows, lists as tuples, one record batch in memory as objects at a time."""
    for batch in table.to_batches(max_chunksize=_BATCH_ROWS):
        yield from zip(*(_values_of(array) for array in batch.columns), strict=True)


def _values_of(array: pa.Array) -> list[Any]:
    if not pa.types.is_list(array.type):
        return array.to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types
    # One list at a time would be ten times slower than all their elements at once.
    elements = array.flatten().to_pylist()
    offsets = array.offsets.to_pylist()
    return [tuple(elements[start - offsets[0] : end - offsets[0]]) for start, end in pairwise(offsets)]


def encode_table(format: TableFormat, rows: Sequence[Sequence[object]]) -> bytes:
    """The bytes of an object with these rows, in their order."""
    assert rows, "an object has at least one row"
    table = table_of(format.schema, rows)
    width = len(format.stored)
    digest = _digest_of(row[:width] for row in rows)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, format.schema, **_PLAIN) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({format.version_key: str(format.version), format.digest_key: digest})
    return sink.getvalue()


def decode_table(format: TableFormat, data: bytes, *, key: str) -> pa.Table:
    """The stored columns of the object in `data`. `key` is for messages.

    Raises `UnsupportedFormatError` and `CorruptObjectError`.
    """
    with _translating(format, key):
        table, said = _opened(format, data, key)
        _check_digest(format, tuples_in(table), said, key)
    return table


def decode_rows(format: TableFormat, data: bytes, *, key: str) -> list[tuple[Any, ...]]:
    """The same as a list of rows, for small objects."""
    with _translating(format, key):
        table, said = _opened(format, data, key)
        rows = list(tuples_in(table))
        _check_digest(format, rows, said, key)
    return rows


@contextmanager
def _translating(format: TableFormat, key: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise format.corrupt(key, f"no readable Parquet file ({str(error).strip()})") from error


def _opened(format: TableFormat, data: bytes, key: str) -> tuple[pa.Table, str]:
    """The table and the digest that its metadata says."""
    file = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
    metadata = {name.decode(): value.decode() for name, value in (file.metadata.metadata or {}).items()}
    version = metadata.get(format.version_key)
    if version is None:
        raise format.corrupt(key, f"its metadata has no {format.version_key}")
    if version != str(format.version):
        raise UnsupportedFormatError(
            f"reading {key}: {format.name} format {version}, this release reads format {format.version}; upgrade the "
            "package"
        )
    stored = format.stored
    table = file.read(columns=stored.names, use_threads=len(data) > _THREADS_BYTES_MIN)
    if sorted(table.schema.names) == sorted(stored.names):
        table = table.select(stored.names)
    if (table.schema.names, table.schema.types) != (stored.names, stored.types):
        raise format.corrupt(key, f"it has the columns {_columns(table.schema)}, not {_columns(stored)}")
    for values, field in zip(table.columns, stored, strict=True):
        if values.null_count and not field.nullable:
            raise format.corrupt(key, f"column {field.name!r} has nulls")
    return table, metadata.get(format.digest_key, "missing")


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)


def _digest_of(rows: Iterable[Sequence[object]]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(ormsgpack.packb(tuple(row)))
    return digest.hexdigest()


def _check_digest(format: TableFormat, rows: Iterable[Sequence[object]], said: str, key: str) -> None:
    found = _digest_of(rows)
    if found != said:
        raise format.corrupt(key, f"the SHA-256 of its rows is {found}, its metadata says {said}")
