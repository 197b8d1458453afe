"""Keys: any names go in and come out again, sort as they must, and never leave their folders."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests import Layout, ObjectKey
from manifests.keys import (
    ID_BYTES_MAX,
    NAMESPACE_BYTES_MAX,
    PREFIX_BYTES_MAX,
    THREAD_BYTES_MAX,
    batch_name,
    checkpoint_in,
    clock_of,
    copying_in,
    decode,
    encode,
    encode_or_hash,
    hash_of,
    id_of,
    is_hash,
    is_part,
    order_of,
    past,
    removal_in,
    removals_in,
    removing_in,
    run_part,
    segment_in,
    value_in,
    writes_in,
)

relaxed = settings(deadline=None, max_examples=200)

HOSTILE = [
    "",
    ".",
    "..",
    "...",
    "/",
    "//",
    "a/../b",
    "../..",
    "~",
    "~" + "0" * 64,
    "%",
    "%2F",
    "%2e%2e",
    "|",
    "parent:1|child:2",
    "a=b&c?d#e",
    "_name",
    "_values/x.bin",
    "checkpoint_ns=~",
    "\x00\n\t ",
    "é",
    "e\u0301",
    "\ufeff\u202e",
    "🎉👩‍👩‍👧",
    "x" * 200,
    "x" * 240,
    "x" * 241,
    "x" * 900,
    "é" * 900,
]
names = st.one_of(st.text(), st.sampled_from(HOSTILE), st.text("a./~%=|-", max_size=4))
short_ids = st.one_of(st.text(min_size=1, max_size=30), st.sampled_from(HOSTILE[1:]), st.text("a./~%é", min_size=1))
ids = short_ids.filter(lambda text: len(encode(text)) <= ID_BYTES_MAX)
layouts = st.sampled_from(["", "archive", "team/archive", "ä b", "p" * PREFIX_BYTES_MAX]).map(Layout.under)
clocks = st.integers(0, 2**56 - 1)
uniques = st.text("0123456789abcdef", min_size=8, max_size=8)


def check_part(part: str, name: str, bytes_max: int) -> None:
    """The name can be read back from its part, or compared with it where it is a hash."""
    assert is_part(part)
    assert len(part) <= bytes_max
    if is_hash(part):
        assert part == hash_of(name)
        assert decode(part) is None
    else:
        assert decode(part) == name


# Round trips


@relaxed
@given(layouts, names, names, ids)
def test_checkpoint_keys_round_trip(layout: Layout, thread_id: str, namespace: str, checkpoint_id: str) -> None:
    """A checkpoint's key says thread, namespace and id."""
    found = layout.parse(layout.checkpoint(thread_id, namespace, checkpoint_id))
    assert (found.kind, found.checkpoint_id, found.name) == ("checkpoint", checkpoint_id, "")
    check_part(found.thread, thread_id, THREAD_BYTES_MAX)
    check_part(found.namespace, namespace, NAMESPACE_BYTES_MAX)


@relaxed
@given(layouts, names, names, ids, clocks, uniques)
def test_writes_keys_round_trip(
    layout: Layout, thread_id: str, namespace: str, checkpoint_id: str, clock: int, unique: str
) -> None:
    """A batch's key says thread, namespace, checkpoint, clock and unique part."""
    key = writes_in(layout.folder(thread_id, namespace, checkpoint_id), batch_name(clock, unique))
    found = layout.parse(key)
    assert (found.kind, found.checkpoint_id, found.name) == ("writes", checkpoint_id, f"{clock:014x}-{unique}")
    assert clock_of(key) == clock
    check_part(found.thread, thread_id, THREAD_BYTES_MAX)
    check_part(found.namespace, namespace, NAMESPACE_BYTES_MAX)


@relaxed
@given(layouts, names, names, st.booleans())
def test_run_keys_round_trip(layout: Layout, thread_id: str, run_id: str, hidden: bool) -> None:
    """Both markers of a run say thread and run, and the run is unreadable where it must be."""
    run = run_part(run_id, hidden=hidden)
    thread = encode_or_hash(thread_id, THREAD_BYTES_MAX)
    assert layout.parse(layout.marker(thread_id, run)) == ObjectKey("marker", thread, name=run)
    assert layout.parse(layout.run(thread_id, run)) == ObjectKey("run", thread, name=run)
    check_part(run, run_id, THREAD_BYTES_MAX)
    assert is_hash(run) or not hidden


@relaxed
@given(layouts, names, uniques | st.text("0123456789abcdef-", min_size=1, max_size=40))
def test_other_keys_of_a_thread_round_trip(layout: Layout, thread_id: str, unique: str) -> None:
    """Values, segments, records and marks are told apart; a name is kept only where the folder hides it."""
    thread = encode_or_hash(thread_id, THREAD_BYTES_MAX)
    folder = layout.thread(thread_id)
    assert layout.parse(layout.value(thread_id, unique)) == ObjectKey("value", thread, name=unique)
    assert layout.parse(segment_in(folder, unique)) == ObjectKey("segment", thread, name=unique)
    assert layout.parse(removal_in(folder, unique)) == ObjectKey("removal", thread, name=unique)
    assert layout.parse(copying_in(folder)) == ObjectKey("copying", thread)
    assert layout.parse(removing_in(folder, "0f-1")) == ObjectKey("removing", thread, name="0f-1")
    assert removal_in(folder, unique).startswith(removals_in(folder))
    assert layout.parse(layout.deleted(thread_id)) == ObjectKey("deleted", thread)
    name = layout.name(thread_id)
    assert (name is not None) == is_hash(thread)
    assert name is None or layout.parse(name) == ObjectKey("name", thread)


@relaxed
@given(layouts, names, names, ids)
def test_keys_built_in_a_folder_are_those_built_from_names(
    layout: Layout, thread_id: str, namespace: str, checkpoint_id: str
) -> None:
    """Who knows only a thread's folder builds the same keys as who knows its id."""
    folder = layout.thread(thread_id)
    assert layout.thread_folder(layout.thread_part(folder)) == folder
    assert layout.folder_in(folder, namespace, checkpoint_id) == layout.folder(thread_id, namespace, checkpoint_id)
    assert value_in(folder, "v") == layout.value(thread_id, "v")
    assert layout.deleted_in(folder) == layout.deleted(thread_id)
    assert layout.name(thread_id) in (None, layout.name_in(folder))


@relaxed
@given(names)
def test_encoded_names_are_plain_and_their_own(name: str) -> None:
    """An encoded name holds few characters, gives the name back, and is no segment that a path could follow."""
    part = encode(name)
    assert re.fullmatch(r"~|(?:[A-Za-z0-9_.-]|%[0-9A-F]{2})+", part)
    assert decode(part) == name
    assert part not in (".", "..")


@relaxed
@given(st.text("ab./~%2Ee=|é", max_size=6))
def test_only_its_own_spelling_is_a_part(text: str) -> None:
    """What is taken for an encoded name is what encoding that name gives."""
    try:
        accepted = is_part(text)
    except UnicodeDecodeError:
        return
    name = decode(text)
    assert accepted == (name is not None and encode(name) == text)


@relaxed
@given(st.lists(st.tuples(*[st.text("a/~%.|=é", max_size=3)] * 2, ids), min_size=2, max_size=20, unique=True))
def test_different_checkpoints_have_different_keys(parts: list[tuple[str, str, str]]) -> None:
    """No two checkpoints share a key, however their names are cut."""
    layout = Layout.under("")
    assert len({layout.checkpoint(*part) for part in parts}) == len(parts)


# Order


@relaxed
@given(st.lists(st.one_of(ids, st.text("ab\x00\U0010ffff", min_size=1, max_size=5)), unique=True, max_size=30))
def test_order_is_that_of_ids_reversed(checkpoint_ids: list[str]) -> None:
    """Order strings, and whole keys, sort checkpoints from the greatest id to the smallest, prefixes too."""
    newest_first = sorted(checkpoint_ids, reverse=True)
    assert sorted(checkpoint_ids, key=order_of) == newest_first
    layout = Layout.under("x")
    keys = sorted(layout.checkpoint("t", "", checkpoint_id).encode() for checkpoint_id in checkpoint_ids)
    assert [layout.parse(key.decode()).checkpoint_id for key in keys] == newest_first


@relaxed
@given(st.lists(ids, unique=True, min_size=2, max_size=10), st.lists(st.tuples(clocks, uniques), unique=True))
def test_a_folder_holds_its_checkpoint_first_and_its_batches_by_clock(
    checkpoint_ids: list[str], batches: list[tuple[int, str]]
) -> None:
    """In a listing, a checkpoint comes before its batches, those by their clocks, and all before the next folder."""
    layout = Layout.under("")
    folders = sorted(layout.folder("t", "", checkpoint_id) for checkpoint_id in checkpoint_ids)
    for one, following in pairwise(folders):
        keys = [checkpoint_in(one), *(writes_in(one, batch_name(*batch)) for batch in sorted(batches))]
        assert sorted(keys) == keys
        assert keys[-1] < past(one) < following


# Limits


@pytest.mark.parametrize("prefix", ["", "p" * PREFIX_BYTES_MAX])
@pytest.mark.parametrize("letter", ["x", "é", "🎉", "/", "~"])
def test_the_longest_keys_fit(prefix: str, letter: str) -> None:
    """At every limit a key has at most 1,024 bytes and a segment at most 255."""

    def longest(limit: int) -> str:
        return letter * (limit // len(encode(letter)))

    layout = Layout.under(prefix)
    for thread_id in (longest(THREAD_BYTES_MAX), longest(THREAD_BYTES_MAX) + letter, letter * 900):
        run = run_part(thread_id, hidden=False)
        folder = layout.folder(thread_id, longest(NAMESPACE_BYTES_MAX), longest(ID_BYTES_MAX))
        keys = [
            checkpoint_in(folder),
            writes_in(folder, batch_name(2**56 - 1, "0" * 8)),
            layout.value(thread_id, "0" * 32),
            layout.marker(thread_id, run),
            layout.run(thread_id, run),
            layout.deleted(thread_id),
            layout.name(thread_id) or "",
            # A merged segment's name has a number behind the unique one.
            segment_in(layout.thread(thread_id), "0" * 32 + "-99"),
            removal_in(layout.thread(thread_id), "0" * 32),
            copying_in(layout.thread(thread_id)),
            removing_in(layout.thread(thread_id), "0" * 32),
        ]
        for key in keys:
            assert len(key.encode()) <= 1024
            assert all(len(part.encode()) <= 255 for part in key.split("/"))


def test_names_are_hashed_only_over_the_limit() -> None:
    """The longest name that fits stays readable."""
    assert not is_hash(encode_or_hash("x" * 200, 200))
    assert is_hash(encode_or_hash("x" * 201, 200))
    assert is_hash(encode_or_hash("é" * 34, 200))


@relaxed
@given(names, names, ids, names)
def test_keys_never_leave_their_folders(thread_id: str, namespace: str, checkpoint_id: str, run_id: str) -> None:
    """All keys of a thread but the run's marker lie in its folder, and no segment is empty or a dot."""
    layout = Layout.under("archive")
    run = run_part(run_id, hidden=False)
    folder = layout.folder(thread_id, namespace, checkpoint_id)
    keys = [
        checkpoint_in(folder),
        writes_in(folder, batch_name(1, "0" * 8)),
        layout.value(thread_id, "v"),
        layout.run(thread_id, run),
        layout.deleted(thread_id),
        layout.name(thread_id) or layout.deleted(thread_id),
        segment_in(layout.thread(thread_id), "0" * 32),
        removal_in(layout.thread(thread_id), "0" * 32),
        copying_in(layout.thread(thread_id)),
        removing_in(layout.thread(thread_id), "0" * 32),
    ]
    marker = layout.marker(thread_id, run)
    assert all(key.startswith(layout.thread(thread_id)) for key in keys)
    assert marker.startswith("archive/runs/run_id=")
    for key in (*keys, marker):
        assert re.fullmatch(r"[A-Za-z0-9_.%~=/-]+", key)
        assert not {"", ".", ".."} & set(key.split("/"))


@pytest.mark.parametrize("lone", ["\ud800", "a\udfffb"])
def test_lone_surrogates_are_refused(lone: str) -> None:
    """A name without a UTF-8 form makes no key."""
    layout = Layout.under("")
    builders = [
        lambda: layout.checkpoint(lone, "", "1"),
        lambda: layout.checkpoint("t", lone, "1"),
        lambda: layout.checkpoint("t", "", lone),
        lambda: layout.value(lone, "v"),
        lambda: layout.deleted(lone),
        lambda: layout.name(lone),
        lambda: run_part(lone, hidden=True),
        lambda: run_part(lone, hidden=False),
        lambda: order_of(lone),
    ]
    for build in builders:
        with pytest.raises(UnicodeEncodeError):
            build()


# Keys of others


FOREIGN = [
    "",
    "x",
    "threads/",
    "threads/thread_id=t",
    "threads/thread_id=t/",
    "threads/thread_id=/_name",
    "threads/thread_id=a b/_name",
    "threads/thread_id=%41/_name",
    "threads/thread_id=%2f/_name",
    "threads/thread_id=%ff/_name",
    "threads/thread_id=../_name",
    "threads/thread_id=~x/_name",
    "threads/thread_id=t/_names",
    "threads/thread_id=t/_name/x",
    "threads/thread_id=t/_values/v",
    "threads/thread_id=t/_values/.bin",
    "threads/thread_id=t/_values/a/b.bin",
    "threads/thread_id=t/_runs/",
    "threads/thread_id=t/_runs/a/b",
    "threads/thread_id=t/_runs/..",
    "threads/thread_id=t/_manifest/",
    "threads/thread_id=t/_manifest/.parquet",
    "threads/thread_id=t/_manifest/x.parquet",
    "threads/thread_id=t/_manifest/0A.parquet",
    "threads/thread_id=t/_manifest/00.parquet.tmp",
    "threads/thread_id=t/_manifest/0/0.parquet",
    "threads/thread_id=t/_manifest/00.parquet\n",
    "threads/thread_id=t/_removed/x.parquet",
    "threads/thread_id=t/_removed/00",
    "threads/thread_id=t/_copying/",
    "threads/thread_id=t/_copying2",
    "threads/thread_id=t/_removing",
    "threads/thread_id=t/_removing/x",
    "threads/thread_id=t/checkpoint_ns=/cez.1/_checkpoint.msgpack",
    "threads/thread_id=t/checkpoint_ns=~",
    "threads/thread_id=t/checkpoint_ns=~/cez.1",
    "threads/thread_id=t/checkpoint_ns=~/cez.1/",
    "threads/thread_id=t/checkpoint_ns=~/cez.1/checkpoint.msgpack",
    "threads/thread_id=t/checkpoint_ns=~/cez.1/_checkpoint.msgpack.tmp",
    "threads/thread_id=t/checkpoint_ns=~/cez.1/writes-1-00000000.parquet",
    "threads/thread_id=t/checkpoint_ns=~/cez.1/writes-00000000000001-0000000G.parquet",
    "threads/thread_id=t/checkpoint_ns=~/cez.1/writes-00000000000001-00000000.parquet\n",
    "threads/thread_id=t/checkpoint_ns=~/cdz.1/_checkpoint.msgpack",
    "threads/thread_id=t/checkpoint_ns=~/CEz.1/_checkpoint.msgpack",
    "threads/thread_id=t/checkpoint_ns=~/z./_checkpoint.msgpack",
    "threads/thread_id=t/checkpoint_ns=~/cez.%31/_checkpoint.msgpack",
    "threads/thread_id=t/checkpoint_ns=~/00z.%FF/_checkpoint.msgpack",
    "runs/run_id=r",
    "runs/run_id=r/",
    "runs/run_id=/t",
    "runs/run_id=r/t/u",
    "runs/run_id=r/%41",
    "_probe/1",
    "other/threads/thread_id=t/_name",
]


@pytest.mark.parametrize("key", FOREIGN)
def test_foreign_keys_are_refused(key: str) -> None:
    """A key that the archive does not make names nothing in it."""
    layout = Layout.under("")
    assert layout.kind(key) is None
    with pytest.raises(ValueError, match=r"."):
        layout.parse(key)


def test_keys_of_another_prefix_are_refused() -> None:
    """An archive knows only what lies under its own prefix."""
    key = Layout.under("a").checkpoint("t", "", "1")
    assert Layout.under("a").kind(key) == "checkpoint"
    assert Layout.under("b").kind(key) is None
    assert Layout.under("").kind(key) is None


def test_folders_say_what_does_not_fit() -> None:
    """An id is read only from a folder whose two halves agree."""
    assert id_of("cez.1") == "1"
    with pytest.raises(ValueError, match="halves"):
        id_of("cez.2")
    with pytest.raises(ValueError, match="no checkpoint folder"):
        id_of("1")
    with pytest.raises(ValueError, match="no writes batch"):
        clock_of("threads/thread_id=t/_name")
