"""Removal records: what is stored comes back, and damage is refused, since a sweep must not go on without a record."""

from __future__ import annotations

import hashlib
import io

import ormsgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import columns_of, garbage_of, metadata_in, others_of, read_flipped, rewritten, table_in
from golden_objects import REMOVALS
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests import CorruptObjectError, UnsupportedFormatError
from manifests.removals import Removal, decode_removals, encode_removals

relaxed = settings(deadline=None, max_examples=60)
texts = st.text(max_size=8) | st.sampled_from(
    ["", "\x00", "é", "e\u0301", "\ufeff\u202e", "\U0010ffff", "🎉👩‍👧", "~|/%"]
)
removals_ = st.builds(
    Removal,
    texts,
    texts,
    st.none() | st.binary(max_size=32),
    st.lists(texts, max_size=3).map(tuple),
    texts,
)
MIXED = REMOVALS["mixed.removals.parquet"]
BODY = encode_removals(MIXED)


def read(data: bytes) -> list[Removal]:
    return decode_removals(data, key="k")


@relaxed
@given(st.lists(removals_, min_size=1, max_size=5))
def test_records_round_trip(removals: list[Removal]) -> None:
    """Removals come back in their order, whatever they hold or lack."""
    assert read(encode_removals(removals)) == removals


def test_a_record_of_a_whole_batch() -> None:
    """A record announces as many removals as one batch of deletions has, and more."""
    removals = [Removal("", f"{n:04}", None, tuple(f"v-{v}" for v in range(n % 5)), "why") for n in range(3000)]
    assert read(encode_removals(removals)) == removals


def test_an_empty_record_is_not_written() -> None:
    """There is no object without a row in it."""
    with pytest.raises(AssertionError):
        encode_removals([])


# Columns, as FORMAT.md has them

COLUMNS = [
    (1, "namespace", "string", False),
    (2, "checkpoint_id", "string", False),
    (3, "sha256", "binary", True),
    (4, "values", "list of string", False),
    (5, "why", "string", False),
]


def test_plain_pyarrow_reads_a_record() -> None:
    """Names, ids, types and nullability are the documented ones, and the rows need no code of ours."""
    assert columns_of(BODY) == COLUMNS
    found = table_in(BODY).to_pylist()
    assert [Removal(**row | {"values": tuple(row["values"])}) for row in found] == MIXED


def test_the_footer_says_format_and_digest() -> None:
    """Metadata holds the format, and the SHA-256 of all rows; there are no statistics or dictionaries."""
    said = b"".join(ormsgpack.packb(list(row.values())) for row in table_in(BODY).to_pylist())
    assert metadata_in(BODY) == {
        "s3_saver.removals.format": "1",
        "s3_saver.removals.sha256": hashlib.sha256(said).hexdigest(),
    }
    footer = pq.read_metadata(io.BytesIO(BODY))
    columns = [footer.row_group(0).column(number) for number in range(footer.num_columns)]
    assert {column.compression for column in columns} == {"ZSTD"}
    assert not any(column.has_dictionary_page or column.is_stats_set for column in columns)


# Damage


def test_flipped_bytes_are_refused() -> None:
    """A changed byte is refused, or it was in a part that no row comes from."""
    refused, found = read_flipped(BODY, read)
    assert all(removals == MIXED for removals in found)
    assert refused > 0.5


def test_cut_objects_are_refused() -> None:
    """A record that lacks its end is refused."""
    for end in range(len(BODY)):
        with pytest.raises(CorruptObjectError):
            read(BODY[:end])


@relaxed
@given(st.binary(max_size=80))
def test_garbage_is_refused(data: bytes) -> None:
    """Bytes that were never a record are refused."""
    for body in garbage_of(data):
        with pytest.raises(CorruptObjectError, match=r"reading k: .*; restore the object"):
            read(body)


@pytest.mark.parametrize("version", ["0", "2", "1.0", ""])
def test_unknown_formats_are_refused(version: str) -> None:
    """The error names the key, what was found and what is supported."""
    body = rewritten(BODY, metadata=metadata_in(BODY) | {"s3_saver.removals.format": version})
    with pytest.raises(
        UnsupportedFormatError, match=rf"reading k: removals format {version}, .* reads format 1; upgrade"
    ):
        read(body)


def test_records_without_metadata_are_refused() -> None:
    """A Parquet file that does not say what it is, or lacks its digest, is none of ours."""
    with pytest.raises(CorruptObjectError, match=r"has no s3_saver\.removals\.format"):
        read(rewritten(BODY, metadata={}))
    with pytest.raises(CorruptObjectError, match="its metadata says missing"):
        read(rewritten(BODY, metadata={"s3_saver.removals.format": "1"}))


def test_a_record_may_be_written_by_another_writer() -> None:
    """Columns of later releases, their order, and how the file is compressed change nothing."""
    table = table_in(BODY)
    assert read(rewritten(BODY, table=table.append_column("later", pa.array([1, 2])))) == MIXED
    assert read(rewritten(BODY, table=table.select(table.column_names[::-1]))) == MIXED


def test_records_with_other_columns_are_refused() -> None:
    """A column that is missing, doubled, of another type or other content, and rows too few, are no guess."""
    for other in others_of(table_in(BODY), text="why", number=pa.int64()):
        with pytest.raises(CorruptObjectError):
            read(rewritten(BODY, table=other))
