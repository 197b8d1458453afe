"""`threads`: what a listing tells of each thread, without reading a state."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kit import (
    Archive,
    MemoryArchive,
    archive_fixture,  # noqa: F401 - a fixture
    config,
    kind_fixture,  # noqa: F401 - a fixture
    loop_fixture,  # noqa: F401 - a fixture
    on_a_real_server,
    put,
    saver_fixture,  # noqa: F401 - a fixture
)

from s3_saver.bucket import Get
from s3_saver.operations.threads import ThreadSummary

LARGE = "x" * 70_000
LONG = "n:" + "1" * 300


def names(saver: Any, **which: Any) -> list[str]:
    return [item.thread_id for item in saver.threads(**which)]


@on_a_real_server
def test_summary(archive: Archive) -> None:
    """A summary has the thread's id, namespaces, number of checkpoints, newest id and time, and all of its bytes."""
    saver = archive.open()
    for thread_id in ("a/ü", "", "x" * 900):
        first = put(saver, thread_id, id="1", values={"large": LARGE}, metadata={"run_id": "r"})
        put(saver, thread_id, id="2", parent=first, values={"k": 1}, changed=("k",))
        put(saver, thread_id, id="9", namespace="b:1", values={"k": 1})
        put(saver, thread_id, id="3", namespace="a", values={"k": 1})
        put(saver, thread_id, id="3", namespace=LONG, values={"k": 1})
        saver.put_writes(config(thread_id, "orphans only", "A"), [("k", 1)], "task")
        saver.put_writes(first.config, [("k", LARGE)], "task")
    found = {item.thread_id: item for item in archive.open().threads()}
    assert found.keys() == {"a/ü", "", "x" * 900}
    stored = archive.keys()
    for thread_id, item in found.items():
        keys = [key for key in stored if key.startswith(archive.layout.thread(thread_id))]
        assert (item.namespaces, item.checkpoints, item.newest_id) == (("", "a", "b:1", LONG), 5, "9")
        assert item.bytes == sum(len(archive.read(key)) for key in keys)
        assert item.newest_stored.tzinfo is UTC


def test_time_is_the_stores() -> None:
    """The time is when the store took the checkpoint with the greatest id, whichever was put last."""
    archive = MemoryArchive()
    saver = archive.open()
    archive.bucket.clock_ms = 1_800_000_000_000
    put(saver, id="2")
    archive.bucket.clock_ms += 60_000
    put(saver, id="1")
    (item,) = saver.threads()
    assert item == ThreadSummary("t", ("",), 2, "2", datetime.fromtimestamp(1_800_000_000, UTC), item.bytes)
    put(saver, id="3")
    (item,) = saver.threads()
    assert item.newest_stored == datetime.fromtimestamp(1_800_000_000, UTC) + timedelta(minutes=1)


def test_what_is_no_thread(archive: Archive) -> None:
    """Deleted threads, threads of orphaned writes alone, and other objects in the bucket are not shown."""
    saver = archive.open()
    assert names(saver) == []
    for thread_id in ("deleted", "kept", "emptied"):
        put(saver, thread_id, id="1", metadata={"run_id": thread_id})
    saver.put_writes(config("writes only", "", "1"), [("k", 1)], "task")
    saver.delete_thread("deleted")
    saver.delete_for_runs(["emptied"])
    root = archive.layout.root
    for key in (f"{root}threads/note.txt", f"{root}threads/other/1", f"{root}threads/thread_id=kept/checkpoint_ns=~/x"):
        archive.write(key, b"not ours")
    assert names(saver) == ["kept"]
    assert [item.checkpoints for item in saver.threads()] == [1]


@on_a_real_server
def test_limit_and_after(archive: Archive) -> None:
    """`limit` ends the listing; `after` goes on behind a thread, be it there or not: pages join without a gap."""
    saver = archive.open()
    stored = ["", "a", "a b", "a/b", "A", "ü", "~", "x" * 900, "y" * 900]
    for thread_id in stored:
        put(saver, thread_id, id="1")
    everything = names(saver)
    assert sorted(everything) == sorted(stored)
    for limit in (-1, 0, 1, 4, 100):
        assert names(saver, limit=limit) == everything[: max(limit, 0)]
    for number, thread_id in enumerate(everything):
        assert names(saver, after=thread_id) == everything[number + 1 :]
        assert names(saver, after=thread_id, limit=2) == everything[number + 1 : number + 3]
    saver.delete_thread(everything[3])
    assert names(saver, after=everything[3]) == everything[4:]


def test_no_state_is_read() -> None:
    """No object is read but for names that are too long for a key: a header for a namespace, the thread's own."""
    archive = MemoryArchive()
    saver = archive.open()
    for number in range(5):
        put(saver, f"t{number}", id="1", values={"large": LARGE})
        put(saver, f"t{number}", id="1", namespace="n")
    reader = archive.open()
    assert len(names(reader)) == 5
    assert not any(isinstance(request, Get) for round_ in reader.driver.rounds for request in round_)
    put(saver, "x" * 900, id="1", namespace=LONG)
    put(saver, "x" * 900, id="2", namespace=LONG)
    reader = archive.open()
    assert len(names(reader)) == 6
    gets = [request for round_ in reader.driver.rounds for request in round_ if isinstance(request, Get)]
    assert [archive.layout.kind(request.key) for request in gets] == ["name", "checkpoint"]
    assert gets[1].first_bytes is not None


def test_a_thousand_threads() -> None:
    """A thousand threads take a listing each and a few dozen rounds; a limit asks for no more than its page."""
    archive = MemoryArchive()
    saver = archive.open()
    for number in range(1000):
        put(saver, f"thread {number:04}", id="1")
    reader = archive.open()
    assert names(reader) == [f"thread {number:04}" for number in range(1000)]
    requests = [request for round_ in reader.driver.rounds for request in round_]
    assert not any(isinstance(request, Get) for request in requests)
    assert len(requests) == 1000 + 10
    assert len(reader.driver.rounds) == 20
    reader.driver.rounds.clear()
    assert len(names(reader, limit=3)) == 3
    assert len(reader.driver.rounds) == 2


def test_a_thread_of_many_pages() -> None:
    """A thread of more keys than a page is counted to its end."""
    archive = MemoryArchive()
    saver = archive.open()
    for number in range(2100):
        archive.write(archive.layout.checkpoint("t", f"n{number % 7}", f"{number:04}"), b"never read")
    put(saver, "t2", id="1")
    item, other = saver.threads()
    assert (item.checkpoints, item.newest_id, len(item.namespaces)) == (2100, "2099", 7)
    assert item.bytes == 2100 * len(b"never read")
    assert other.thread_id == "t2"


@pytest.mark.parametrize("after", [1.5, "\ud800"])
def test_wrong_arguments(saver: Any, after: Any) -> None:
    """What cannot be a thread id is refused."""
    with pytest.raises((TypeError, ValueError), match="thread_id"):
        names(saver, after=after)


def test_nothing_is_asked_before_the_first_is_wanted() -> None:
    """An iterator that nobody reads sends no request."""
    saver = MemoryArchive().open()
    saver.threads()
    assert saver.driver.rounds == []
