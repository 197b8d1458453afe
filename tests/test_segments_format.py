"""Manifest segments: what is stored comes back, in part or whole, and damage is refused, never misread."""

from __future__ import annotations

import hashlib
import io
import time
import tracemalloc

import ormsgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import columns_of, garbage_of, metadata_in, others_of, read_flipped, rewritten, table_in
from golden_objects import FULL, SEGMENTS, packed
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests import CorruptObjectError, UnsupportedFormatError
from manifests.segments import Row, decode_segment, encode_segment, row_of, rows_in

relaxed = settings(deadline=None, max_examples=40)
texts = st.text(max_size=8) | st.sampled_from(
    ["", "\x00", "é", "e\u0301", "\ufeff\u202e", "\U0010ffff", "🎉👩‍👧", "~|/%"]
)
names = st.lists(texts, max_size=3).map(tuple)
numbers = st.integers(-(2**63), 2**63 - 1)
rows_ = st.builds(
    Row,
    namespace=texts,
    checkpoint_id=texts,
    parent_id=st.none() | texts,
    depth=st.none() | numbers,
    ts=st.none() | texts,
    v=st.none() | numbers,
    step=st.none() | numbers,
    source=st.none() | texts,
    run_id=st.none() | texts,
    metadata_type=texts,
    metadata=st.binary(max_size=20),
    metadata_thread_id=st.booleans(),
    metadata_json=st.none() | texts,
    size=numbers,
    etag=texts,
    sha256=st.none() | st.binary(min_size=32, max_size=32),
    channels=names,
    values=names,
    snapshots=names,
    counted=names,
    unstored=names,
    advanced=names,
)
MIXED = SEGMENTS["mixed.manifest.parquet"]
BODY = encode_segment(MIXED)


def read(data: bytes) -> list[Row]:
    return list(rows_in(decode_segment(data, key="k")))


# Round trips


@relaxed
@given(st.lists(rows_, min_size=1, max_size=5))
def test_segments_round_trip(rows: list[Row]) -> None:
    """Rows come back in their order, whatever they hold or lack."""
    assert read(encode_segment(rows)) == rows


@relaxed
@given(st.lists(rows_, min_size=1, max_size=5), st.lists(st.sampled_from(Row._fields), unique=True, min_size=1))
def test_some_columns_give_the_same_rows_with_the_others_empty(rows: list[Row], columns: list[str]) -> None:
    """Only the named fields are filled, in whichever order they are named."""
    empty = Row("", "")
    wanted = ["namespace", "checkpoint_id", *(name for name in columns if name not in ("namespace", "checkpoint_id"))]
    found = list(rows_in(decode_segment(encode_segment(rows), key="k"), wanted))
    assert found == [empty._replace(**{name: getattr(row, name) for name in wanted}) for row in rows]


@relaxed
@given(st.lists(rows_, min_size=2, max_size=8), st.data())
def test_any_part_of_a_table_gives_its_rows(rows: list[Row], data: st.DataObject) -> None:
    """Slices, picked rows and tables of several chunks are read alike: lists stay with their rows."""
    table = decode_segment(encode_segment(rows), key="k")
    start = data.draw(st.integers(0, len(rows)))
    assert list(rows_in(table.slice(start))) == rows[start:]
    picked = data.draw(st.lists(st.integers(0, len(rows) - 1)))
    assert list(rows_in(table.take(pa.array(picked, pa.int64())))) == [rows[number] for number in picked]
    assert list(rows_in(pa.concat_tables([table.slice(start), table]))) == rows[start:] + rows


def test_a_segment_of_rows_that_were_read_is_the_same_segment() -> None:
    """Merging reads rows and writes them again: nothing changes on the way."""
    assert encode_segment(read(BODY)) == BODY


def test_an_empty_segment_is_not_written() -> None:
    """There is no object without a row in it."""
    with pytest.raises(AssertionError):
        encode_segment([])


# Rows of headers


def test_a_row_says_what_the_header_says() -> None:
    """Fields that the header has are the header's; the value objects are those of its entries."""
    header = FULL.header
    described = {"step": 6, "source": "loop", "run_id": "run/1"}
    row = row_of(header, size=9, etag='"e"', sha256=b"s" * 32, described=described, metadata_json="{}")
    for name in ("namespace", "checkpoint_id", "parent_id", "depth", "snapshots", "counted", "unstored", "advanced"):
        assert getattr(row, name) == getattr(header, name)
    assert (row.ts, row.v, row.step, row.source, row.run_id) == ("2025-06-01T12:00:01+00:00", 4, 6, "loop", "run/1")
    assert (row.typed_metadata, row.metadata_thread_id) == (header.metadata, True)
    assert (row.channels, row.values) == (tuple(header.channels), header.values)
    assert (row.size, row.etag, row.sha256, row.metadata_json) == (9, '"e"', b"s" * 32, "{}")
    assert read(encode_segment([row])) == [row]


@pytest.mark.parametrize("odd", [True, 1.5, 2**63, -(2**63) - 1, None, [1], {"a": 1}, b"b", ("t",)])
def test_what_no_column_can_hold_is_null(odd: object) -> None:
    """Metadata may hold anything under the names of columns; a row is made all the same."""
    described = {"step": odd, "source": odd, "run_id": odd}
    row = row_of(FULL.header, size=1, etag="e", sha256=None, described=described, metadata_json=None)
    assert (row.step, row.source, row.run_id) == (None, None, None)
    assert read(encode_segment([row])) == [row]


def test_lone_surrogates_are_replaced() -> None:
    """Text without a UTF-8 form makes a readable row; the metadata's own bytes keep it."""
    row = row_of(FULL.header, size=1, etag="e", sha256=None, described={"source": "a\ud800"}, metadata_json=None)
    assert row.source == "a?"
    assert read(encode_segment([row])) == [row]


# Columns, as FORMAT.md has them

COLUMNS = [
    (1, "namespace", "string", False),
    (2, "checkpoint_id", "string", False),
    (3, "parent_id", "string", True),
    (4, "depth", "int64", True),
    (5, "ts", "string", True),
    (6, "v", "int64", True),
    (7, "step", "int64", True),
    (8, "source", "string", True),
    (9, "run_id", "string", True),
    (10, "metadata_type", "string", False),
    (11, "metadata", "binary", False),
    (12, "metadata_thread_id", "bool", False),
    (13, "metadata_json", "string", True),
    (14, "size", "int64", False),
    (15, "etag", "string", False),
    (16, "sha256", "binary", True),
    (17, "channels", "list of string", False),
    (18, "values", "list of string", False),
    (19, "snapshots", "list of string", False),
    (20, "counted", "list of string", False),
    (21, "unstored", "list of string", False),
    (22, "advanced", "list of string", False),
]


def test_plain_pyarrow_reads_a_segment() -> None:
    """Names, ids, types and nullability are the documented ones, and the rows need no code of ours."""
    assert columns_of(BODY) == COLUMNS
    assert [name for _, name, _, _ in COLUMNS] == list(Row._fields)
    plain = [{name: tuple(v) if isinstance(v, list) else v for name, v in row.items()} for row in _dicts(BODY)]
    assert [Row(**row) for row in plain] == MIXED


def _dicts(body: bytes) -> list[dict[str, object]]:
    found: list[dict[str, object]] = table_in(body).to_pylist()
    return found


def test_the_footer_says_format_and_digest() -> None:
    """Metadata holds the format, and the SHA-256 of all rows; there are no statistics or dictionaries."""
    said = b"".join(ormsgpack.packb(list(row.values())) for row in _dicts(BODY))
    assert metadata_in(BODY) == {
        "s3_saver.manifest.format": "1",
        "s3_saver.manifest.sha256": hashlib.sha256(said).hexdigest(),
    }
    footer = pq.read_metadata(io.BytesIO(BODY))
    columns = [footer.row_group(0).column(number) for number in range(footer.num_columns)]
    assert {column.compression for column in columns} == {"ZSTD"}
    assert not any(column.has_dictionary_page or column.is_stats_set for column in columns)


# Damage


def test_flipped_bytes_are_refused() -> None:
    """A changed byte is refused, or it was in a part that no row comes from; a sweep trusts these rows."""
    refused, found = read_flipped(BODY, read, every=5)
    assert all(rows == MIXED for rows in found)
    assert refused > 0.5


def test_cut_objects_are_refused() -> None:
    """A segment that lacks its end is refused."""
    for end in range(len(BODY)):
        with pytest.raises(CorruptObjectError):
            read(BODY[:end])


@relaxed
@given(st.binary(max_size=80))
def test_garbage_is_refused(data: bytes) -> None:
    """Bytes that were never a segment are refused, and the error says that the manifest can be built again."""
    for body in garbage_of(data):
        with pytest.raises(CorruptObjectError, match=r"reading k: .*; delete it, the manifest is built again"):
            read(body)


@pytest.mark.parametrize("version", ["0", "2", "1.0", ""])
def test_unknown_formats_are_refused(version: str) -> None:
    """The error names the key, what was found and what is supported."""
    body = rewritten(BODY, metadata=metadata_in(BODY) | {"s3_saver.manifest.format": version})
    with pytest.raises(
        UnsupportedFormatError, match=rf"reading k: manifest format {version}, .* reads format 1; upgrade"
    ):
        read(body)


def test_segments_without_metadata_are_refused() -> None:
    """A Parquet file that does not say what it is, or lacks its digest, is none of ours."""
    with pytest.raises(CorruptObjectError, match=r"has no s3_saver\.manifest\.format"):
        read(rewritten(BODY, metadata={}))
    with pytest.raises(CorruptObjectError, match="its metadata says missing"):
        read(rewritten(BODY, metadata={"s3_saver.manifest.format": "1"}))


def test_a_segment_may_be_written_by_another_writer() -> None:
    """Columns of later releases, their order, and how the file is compressed change nothing."""
    table = table_in(BODY)
    assert read(rewritten(BODY)) == MIXED
    assert read(rewritten(BODY, table=table.append_column("later", pa.array([1, 2])))) == MIXED
    assert read(rewritten(BODY, table=table.select(table.column_names[::-1]))) == MIXED


def test_segments_with_other_columns_are_refused() -> None:
    """A column that is missing, doubled, of another type or other content, and rows too few, are no guess."""
    table = table_in(BODY)
    place = table.column_names.index("values")
    others = others_of(table, text="etag", number=pa.int64())
    others.append(table.set_column(place, "values", table["channels"]))
    others.append(table.set_column(place, "values", pa.array([None, ["v"]], pa.list_(pa.string()))))
    others.append(table.set_column(place, "values", pa.array([[None], ["v"]], pa.list_(pa.string()))))
    for other in others:
        with pytest.raises(CorruptObjectError):
            read(rewritten(BODY, table=other))


# Size


def test_a_hundred_thousand_rows_are_read_bit_by_bit() -> None:
    """They are one object of a few megabytes, read in seconds; few rows are in memory as objects at a time."""
    count = 100_000
    links = ("namespace", "checkpoint_id", "parent_id", "size", "channels", "values")
    body = encode_segment([_ordinary(number) for number in range(count)])
    assert len(body) < 100 * count

    # Processor time, since other tests may run beside this one. A laptop takes two seconds.
    began = time.process_time()
    table = decode_segment(body, key="k")
    assert [row.depth for row in rows_in(table, ("namespace", "checkpoint_id", "depth"))] == list(range(count))
    assert time.process_time() - began < 30

    tracemalloc.start()
    try:
        assert sum(len(row.values) for row in rows_in(table.slice(80_000), links)) == 20_000
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def _ordinary(number: int) -> Row:
    """A row as a long chat makes them."""
    return Row(
        namespace="",
        checkpoint_id=f"1f0a2b3c-4d5e-6f70-8192-{number:012x}",
        parent_id=f"1f0a2b3c-4d5e-6f70-8192-{number - 1:012x}",
        depth=number,
        ts="2025-06-01T12:00:00.123456+00:00",
        v=4,
        step=number - 1,
        source="loop",
        run_id="1f0a2b3c-4d5e-6f70-8192-a3b4c5d6e7f8",
        metadata_type="msgpack",
        metadata=packed({"source": "loop", "step": number - 1, "parents": {}}).data,
        metadata_json=f'{{"source": "loop", "step": {number - 1}, "parents": {{}}}}',
        size=4_000 + number % 1000,
        etag=f'"{number:032x}"',
        sha256=number.to_bytes(32, "big"),
        channels=("__pregel_tasks", "document", "messages"),
        values=("0f8fad5bd9cb469fa16570867728950e",),
    )
