"""Writes batches: what is stored comes back, merges by LangGraph's rule, and damage is refused."""

from __future__ import annotations

import hashlib
import io
import random

import ormsgpack
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from damage import columns_of, garbage_of, metadata_in, others_of, read_flipped, rewritten, table_in
from golden_objects import WRITES, packed
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests import (
    CorruptObjectError,
    UnsupportedFormatError,
    WriteRow,
    decode_writes,
    encode_writes,
    merge_writes,
)

relaxed = settings(deadline=None, max_examples=60)
texts = st.text(max_size=12)
rows_ = st.builds(
    WriteRow,
    texts,
    texts,
    st.integers(-(2**31), 2**31 - 1),
    texts,
    st.sampled_from(["msgpack", "null", "json", "bytes", "msgpack+aes"]) | texts,
    st.binary(max_size=40),
)


def written(rows: list[WriteRow], namespace: str = "", checkpoint_id: str = "1") -> bytes:
    return encode_writes(rows, namespace=namespace, checkpoint_id=checkpoint_id)


def read(data: bytes, namespace: str = "", checkpoint_id: str = "1") -> list[WriteRow]:
    return decode_writes(data, key="k", namespace=namespace, checkpoint_id=checkpoint_id)


# Round trips


@relaxed
@given(st.lists(rows_, min_size=1, max_size=5), texts, texts)
def test_batches_round_trip(rows: list[WriteRow], namespace: str, checkpoint_id: str) -> None:
    """Rows come back in their order, whatever they hold."""
    assert read(written(rows, namespace, checkpoint_id), namespace, checkpoint_id) == rows


def test_a_batch_of_a_thousand_rows() -> None:
    """A thousand writes are one object, and keep their order."""
    rows = [WriteRow(f"task-{n % 7}", "", n, "messages", *packed(f"message {n}")) for n in range(1000)]
    data = written(rows)
    assert read(data) == rows
    assert pq.read_metadata(io.BytesIO(data)).num_rows == 1000


def test_a_small_batch_is_a_small_object() -> None:
    """Two messages of 1.4 kB that do not repeat themselves take less than 5 kB."""
    words = random.Random(7)
    texts = ["".join(words.choices("abcdefghijklmnopqrstuvwxyz ", k=1400)) for _ in range(2)]
    rows = [WriteRow(f"{n}" * 36, "~__pregel_pull, agent", n, "messages", *packed(texts[n])) for n in range(2)]
    assert len(written(rows)) < 5_000


def test_an_empty_batch_is_not_written() -> None:
    """There is no object without a write in it."""
    with pytest.raises(AssertionError):
        written([])


# Columns, as FORMAT.md has them

COLUMNS = [
    (1, "namespace", "string", False),
    (2, "checkpoint_id", "string", False),
    (3, "task_id", "string", False),
    (4, "task_path", "string", False),
    (5, "idx", "int32", False),
    (6, "channel", "string", False),
    (7, "type", "string", False),
    (8, "value", "binary", False),
    (9, "value_json", "string", True),
]


def test_plain_pyarrow_reads_a_batch() -> None:
    """Names, ids, types and nullability are the documented ones, and the rows need no code of ours."""
    namespace, checkpoint_id, rows = WRITES["many.writes.parquet"]
    body = written(rows, namespace, checkpoint_id)
    assert columns_of(body) == COLUMNS
    found = table_in(body).to_pylist()
    assert [WriteRow(*list(row.values())[2:8]) for row in found] == rows
    assert {(row["namespace"], row["checkpoint_id"]) for row in found} == {(namespace, checkpoint_id)}


def test_the_footer_says_format_and_digest() -> None:
    """Metadata holds the format, and the SHA-256 of what the batch says; there are no statistics or dictionaries."""
    namespace, checkpoint_id, rows = WRITES["many.writes.parquet"]
    body = written(rows, namespace, checkpoint_id)
    said = b"".join(ormsgpack.packb([namespace, checkpoint_id, *row]) for row in rows)
    assert metadata_in(body) == {
        "s3_saver.writes.format": "1",
        "s3_saver.writes.sha256": hashlib.sha256(said).hexdigest(),
    }
    footer = pq.read_metadata(io.BytesIO(body))
    columns = [footer.row_group(0).column(number) for number in range(footer.num_columns)]
    assert {column.compression for column in columns} == {"ZSTD"}
    assert not any(column.has_dictionary_page or column.is_stats_set for column in columns)


def test_projections_are_null_where_nothing_can_be_shown() -> None:
    """Encrypted, large and opaque values have no JSON; the others have."""
    namespace, checkpoint_id, rows = WRITES["many.writes.parquet"]
    table = table_in(written(rows, namespace, checkpoint_id))
    shown = dict(zip(table["channel"].to_pylist(), table["value_json"].to_pylist(), strict=True))
    assert {channel for channel, text in shown.items() if text is None} == {"secret", "large"}
    assert shown["none"] == "null"
    assert shown["__interrupt__"] == '[{"value": "go on?", "id": "i-1"}]'


# Damage

ROWS = [WriteRow("t1", "", 0, "messages", *packed("hello"))]
BODY = written(ROWS)


def test_flipped_bytes_are_refused() -> None:
    """A changed byte is refused, or it was in a part that no row comes from: the projection, Parquet's own padding."""
    rows = [
        WriteRow("t1", "path", 0, "messages", *packed("hello")),
        WriteRow("t1", "path", -3, "__interrupt__", "null", b""),
    ]
    refused, found = read_flipped(written(rows), read)
    assert all(one == rows for one in found)
    assert refused > 0.5


def test_cut_objects_are_refused() -> None:
    """A batch that lacks its end is refused."""
    body = written([WriteRow("t1", "", 0, "messages", *packed("hello"))])
    for end in range(len(body)):
        with pytest.raises(CorruptObjectError):
            read(body[:end])


@relaxed
@given(st.binary(max_size=80))
def test_garbage_is_refused(data: bytes) -> None:
    """Bytes that were never a batch are refused."""
    for body in garbage_of(data):
        with pytest.raises(CorruptObjectError):
            read(body)


def test_another_checkpoints_batch_is_refused() -> None:
    """A batch that was moved to another checkpoint's folder is found out."""
    body = written([WriteRow("t1", "", 0, "messages", *packed("hello"))], "ns", "1")
    for namespace, checkpoint_id in (("ns", "2"), ("", "1"), ("n", "s1")):
        with pytest.raises(CorruptObjectError, match="another checkpoint's"):
            read(body, namespace, checkpoint_id)


@pytest.mark.parametrize("version", ["0", "2", "1.0", ""])
def test_unknown_formats_are_refused(version: str) -> None:
    """The error names the key, what was found and what is supported."""
    body = rewritten(BODY, metadata={"s3_saver.writes.format": version})
    with pytest.raises(
        UnsupportedFormatError, match=rf"reading k: writes format {version}, .* reads format 1; upgrade"
    ):
        read(body)


def test_a_batch_may_be_written_by_another_writer() -> None:
    """Columns of later releases, their order, how the file is compressed, and no projection change nothing."""
    table = table_in(BODY)
    assert read(rewritten(BODY, table=table.append_column("later", pa.array([1])))) == ROWS
    assert read(rewritten(BODY, table=table.drop_columns(["value_json"]))) == ROWS
    assert read(rewritten(BODY, table=table.select(table.column_names[::-1]))) == ROWS


def test_batches_with_other_columns_are_refused() -> None:
    """A column that is missing, doubled, of another type or other content is no guess."""
    table = table_in(BODY)
    others = [
        *others_of(table, text="task_id", number=pa.int64()),
        table.drop_columns(["idx"]),
        table.append_column("idx", table["idx"]),
        table.set_column(4, "idx", table["idx"].cast(pa.int64())),
        table.set_column(4, "idx", pa.array([{"a": 1}])),
        table.set_column(7, "value", pa.array(["text"])),
        table.set_column(0, "namespace", pa.array(["other"])),
    ]
    for other in others:
        with pytest.raises(CorruptObjectError):
            read(rewritten(BODY, table=other))


def test_batches_without_metadata_are_refused() -> None:
    """A Parquet file that does not say what it is, or lacks its digest, is none of ours."""
    with pytest.raises(CorruptObjectError, match=r"has no s3_saver\.writes\.format"):
        read(rewritten(BODY, metadata={}))
    with pytest.raises(CorruptObjectError, match="its metadata says missing"):
        read(rewritten(BODY, metadata={"s3_saver.writes.format": "1"}))


# Merging


def row(task_id: str, idx: int, value: str, *, path: str = "") -> WriteRow:
    return WriteRow(task_id, path, idx, "c", *packed(value))


def test_the_first_ordinary_and_the_last_special_write_stand() -> None:
    """For `idx >= 0` a later write changes nothing; for the special channels it replaces."""
    merged = merge_writes(
        [
            [row("t", 0, "first"), row("t", -1, "first"), row("t", 0, "second")],
            [row("t", 0, "third"), row("t", 1, "first"), row("t", -1, "last"), row("u", 0, "other")],
        ]
    )
    assert merged == [row("t", -1, "last"), row("t", 0, "first"), row("t", 1, "first"), row("u", 0, "other")]


def test_writes_are_ordered_by_path_task_and_number() -> None:
    """Empty paths come first, a task's special writes before its ordinary ones, and 10 after 9."""
    ordered = [
        row("b", -3, ""),
        row("b", 0, ""),
        row("b", 9, ""),
        row("b", 10, ""),
        row("c", 0, ""),
        row("a", 0, "", path="~__pregel_pull, x"),
        row("a", 2, "", path="~__pregel_pull, x"),
        row("a", 10, "", path="~__pregel_push, 0000000001"),
    ]
    shuffled = ordered[:]
    random.Random(1).shuffle(shuffled)
    assert merge_writes([shuffled]) == ordered
    assert merge_writes([[one] for one in shuffled]) == ordered
    assert merge_writes([]) == []


few = st.builds(
    row, st.sampled_from("ab"), st.integers(-4, 3), st.text("xyz", max_size=3), path=st.sampled_from(["", "p"])
)


@settings(deadline=None)
@given(st.lists(st.lists(few, max_size=4), max_size=6), st.integers(0, 6))
def test_merging_can_be_cut_anywhere(batches: list[list[WriteRow]], cut: int) -> None:
    """One batch or many, merged at once or bit by bit, the same writes stand: one for each task and number."""
    merged = merge_writes(batches)
    assert len({(one.task_id, one.idx) for one in merged}) == len(merged)
    assert merge_writes([[one for batch in batches for one in batch]]) == merged
    assert merge_writes([merge_writes(batches[:cut]), *batches[cut:]]) == merged
    assert merge_writes([*batches, *batches]) == merge_writes([merged, *batches]) == merged
