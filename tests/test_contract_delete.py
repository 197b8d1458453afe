"""`delete_thread`: all of one thread goes, and nothing of another."""

from __future__ import annotations

from typing import Any

import pytest
from kit import (
    Archive,
    Background,
    FailingBucket,
    GatedBucket,
    MemoryArchive,
    archive_fixture,  # noqa: F401 - a fixture
    config,
    kind_fixture,  # noqa: F401 - a fixture
    loop_fixture,  # noqa: F401 - a fixture
    on_a_real_server,
    put,
    saver_fixture,  # noqa: F401 - a fixture
    values_at,
    whole_thread,
    writes_at,
)

from s3_saver.bucket import Put
from s3_saver.errors import StoreUnavailableError

LARGE = "x" * 70_000


def fill(saver: Any, thread_id: str, name: str = "") -> None:
    """A thread with namespaces, writes, large values, orphaned writes and a run."""
    first = put(saver, thread_id, values={"large": LARGE, "k": name}, metadata={"run_id": "R"})
    put(saver, thread_id, values={"k": name}, parent=first, changed=("k",), metadata={"run_id": "R"})
    put(saver, thread_id, namespace="n:1|m:2", values={"k": name})
    saver.put_writes(first.config, [("k", name)], "task")
    saver.put_writes(config(thread_id, "", "orphan"), [("k", name)], "task")
    saver.put_writes(config(thread_id, "only orphans", "orphan"), [("k", name)], "task")


@on_a_real_server
def test_everything_goes(archive: Archive) -> None:
    """Checkpoints, writes, values, orphans and markers of all namespaces go; only a tombstone without a name stays."""
    saver = archive.open()
    for thread_id in ("t", "x" * 900):
        fill(saver, thread_id)
        saver.delete_thread(thread_id)
        for reader in (saver, archive.open()):
            assert reader.get_tuple(config(thread_id)) is None
            assert list(reader.list(whole_thread(thread_id))) == []
    assert list(saver.list(None)) == []
    assert sorted(archive.keys()) == sorted(archive.layout.deleted(thread_id) for thread_id in ("t", "x" * 900))
    assert all(b"xxx" not in archive.read(key) for key in archive.keys())


@on_a_real_server
def test_other_threads_stay(archive: Archive) -> None:
    """Threads whose names begin alike, or are alike but for case or coding, keep all that they have."""
    saver = archive.open()
    others = ["t", "t1", "t10/", "T10", "t%310", ""]
    for name in (*others, "t10"):
        fill(saver, name, name)
    before = {key for key in archive.keys() if "thread_id=t10/" not in key and not key.endswith("/t10")}
    saver.delete_thread("t10")
    assert {key for key in archive.keys() if "_deleted" not in key} == before
    assert [values_at(saver, config(name)) for name in others] == [{"k": name, "large": LARGE} for name in others]


def test_missing_thread_is_left_alone(archive: Archive) -> None:
    """Deleting a thread that is not there does nothing, and leaves no trace."""
    saver = archive.open()
    saver.delete_thread("unknown")
    assert archive.keys() == []


def test_deleting_twice(archive: Archive) -> None:
    """A second deletion is fine, and a thread of the same name starts anew."""
    saver = archive.open()
    for number in range(2):
        fill(saver, "t", str(number))
        saver.delete_thread("t")
        saver.delete_thread("t")
        assert saver.get_tuple(config()) is None
    stored = put(saver, values={"k": "new"})
    assert values_at(archive.open(), stored.config) == {"k": "new"}
    assert len(list(saver.list(None))) == 1


def test_orphaned_writes_do_not_come_back(saver: Any) -> None:
    """Writes that waited for their checkpoint are deleted with the thread, so the checkpoint comes without them."""
    saver.put_writes(config("t", "", "1"), [("k", 1)], "task")
    saver.delete_thread("t")
    stored = put(saver, id="1")
    assert writes_at(saver, stored.config) == []


def test_more_keys_than_one_request_deletes() -> None:
    """A thread of more keys than a deletion takes goes whole."""
    archive = MemoryArchive()
    saver = archive.open()
    put(saver)
    saver.put_writes(config("t", "", "orphan"), [("k", 1)], "task")
    (batch,) = archive.keys_of("writes")
    for number in range(1100):
        folder = archive.layout.folder("t", "", f"{number:04}")
        archive.write(folder + batch.rpartition("/")[2], archive.read(batch))
    saver.delete_thread("t")
    assert archive.keys() == [archive.layout.deleted("t")]


def test_tombstone_goes_when_it_is_old() -> None:
    """Deleting again after the grace period removes the tombstone too."""
    archive = MemoryArchive()
    saver = archive.open()
    put(saver)
    saver.delete_thread("t")
    assert archive.keys() == [archive.layout.deleted("t")]
    archive.bucket.clock_ms += 3_599_000
    saver.delete_thread("t")
    assert archive.keys() == [archive.layout.deleted("t")]
    archive.bucket.clock_ms += 2_000
    saver.delete_thread("t")
    assert archive.keys() == []


@pytest.mark.parametrize("after", [False, True])
def test_killed_deletion_is_finished_by_the_next(after: bool) -> None:
    """A deletion that fails at any request leaves whole checkpoints only, and the next one finishes it."""
    for number in range(50):
        bucket = FailingBucket()
        archive = MemoryArchive(bucket=bucket)
        fill(archive.open(), "t", "name")
        bucket.arm(number, after=after)
        try:
            archive.open().delete_thread("t")
        except StoreUnavailableError:
            pass
        else:
            assert number > 5
            return
        bucket.arm(None)
        for item in archive.open().list(None):
            assert item.checkpoint["channel_values"]["k"] == "name"
        archive.open().delete_thread("t")
        assert archive.keys() == [archive.layout.deleted("t")]
    pytest.fail("the deletion never ended")


@pytest.mark.parametrize("held", ["checkpoint", "value", "marker"])
def test_deletion_during_a_put(held: str) -> None:
    """A put that ends after its thread was deleted leaves a whole checkpoint or none, and can be deleted again."""
    bucket = GatedBucket()
    archive = MemoryArchive(bucket=bucket)
    saver = archive.open()
    first = put(saver, values={"large": LARGE, "k": 1})
    bucket.holds = lambda request: isinstance(request, Put) and archive.layout.kind(request.key) == held
    values = {"large": LARGE, "k": 2, "new": LARGE + "y"}
    call = Background(
        lambda: put(saver, values=values, parent=first, changed=("k", "new"), metadata={"run_id": "R"}, id="~")
    )
    assert bucket.reached.wait(5)
    archive.open().delete_thread("t")
    bucket.release()
    stored = call.result()
    for reader in (saver, archive.open()):
        item = reader.get_tuple(stored.config)
        assert item is None or item.checkpoint["channel_values"] == values
        assert [found.checkpoint for found in reader.list(None)] == ([item.checkpoint] if item else [])
    archive.open().delete_thread("t")
    assert all(archive.layout.kind(key) in ("deleted", "marker") for key in archive.keys())


def test_put_after_a_deletion_elsewhere() -> None:
    """A put whose parent was deleted by another process meanwhile stores all that it is given."""
    archive = MemoryArchive()
    saver = archive.open()
    first = put(saver, values={"k": 1, "small": "s"})
    archive.open().delete_thread("t")
    second = put(saver, values={"k": 2, "small": "s"}, parent=first, changed=("k",))
    assert values_at(archive.open(), second.config) == {"k": 2, "small": "s"}
