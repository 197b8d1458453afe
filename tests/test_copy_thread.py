"""`copy_thread`: a whole thread under another name, by the store's own copies."""

from __future__ import annotations

import json
from dataclasses import replace
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
    found,
    history,
    ids,
    kind_fixture,  # noqa: F401 - a fixture
    loop_fixture,  # noqa: F401 - a fixture
    on_a_real_server,
    put,
    saver_fixture,  # noqa: F401 - a fixture
    values_at,
    whole_thread,
    writes_at,
)
from memory_saver import MemorySaver

from manifests.keys import batch_name, copying_in, removing_in, writes_in
from s3_saver.bucket import PAGE_KEYS_MAX, Body, Copy, Get, List, Page, Request, Stored
from s3_saver.bucket import Put as PutRequest
from s3_saver.drivers.memory import MemoryBucket
from s3_saver.errors import StoreUnavailableError, ThreadBusyError

LARGE = "x" * 70_000
LONG_NAMESPACE = "n:" + "1" * 300


def fill(saver: Any, thread_id: Any) -> None:
    """Forks, several namespaces, large values, writes with task paths, a run, and writes without a checkpoint."""
    run = {"source": "loop", "step": 1, "run_id": "R", "thread_id": str(thread_id)}
    first = put(saver, thread_id, id="1", values={"large": LARGE, "k": 1}, metadata=run)
    second = put(saver, thread_id, id="2", parent=first, values={"large": LARGE, "k": 2}, changed=("k",), metadata=run)
    put(saver, thread_id, id="3", parent=second, values={"large": LARGE, "k": 3}, changed=("k",))
    # A child with a smaller id than its parent's, and a fork.
    put(saver, thread_id, id="0", parent=second, values={"large": LARGE, "k": 0}, changed=("k",))
    for namespace in ("child", "child:1|grandchild:2", LONG_NAMESPACE):
        put(saver, thread_id, id="1", namespace=namespace, values={"k": namespace})
    saver.put_writes(second.config, [("k", "z"), ("__error__", "e")], "task z", "~a")
    saver.put_writes(second.config, [("k", "a")], "task a", "~b")
    saver.put_writes(second.config, [("k", "null")], "task n")
    saver.put_writes(config(thread_id, "", "9"), [("k", "early")], "task e")


def seen(saver: Any, thread_id: Any) -> list[Any]:
    """All that can be read of the thread, but its name, which must stand wherever a thread's name does."""
    items = []
    for item in saver.list(whole_thread(thread_id)):
        for named in filter(None, (item.config, item.parent_config)):
            assert named["configurable"].pop("thread_id") == str(thread_id)
        assert item.metadata.pop("thread_id", str(thread_id)) == str(thread_id)
        items.append(item)
    return sorted(items, key=lambda item: (item.config["configurable"]["checkpoint_ns"], item.checkpoint["id"]))


def objects(archive: Archive, thread_id: str = "") -> dict[str, bytes]:
    """What lies in the store, of one thread or altogether."""
    names = archive.keys()
    return {name: archive.read(name) for name in names if not thread_id or f"thread_id={thread_id}/" in name}


class SaltedBucket(MemoryBucket):
    """Gives the same bytes another ETag under every key."""

    def answer(self, request: Request[Any]) -> Any:
        answer = super().answer(request)
        if isinstance(answer, Page):
            keys = tuple(replace(listed, etag=listed.etag + listed.key) for listed in answer.keys)
            return replace(answer, keys=keys)
        if isinstance(request, PutRequest | Copy | Get) and isinstance(answer, Stored | Body):
            return replace(answer, etag=answer.etag + request.key)
        return answer


def marks(archive: Archive) -> list[str]:
    return archive.keys_of("copying")


# What a copy is


@on_a_real_server
def test_everything_is_copied(archive: Archive) -> None:
    """Every namespace, id, parent, value and write reads the same in the copy, and the source is as it was."""
    saver = archive.open()
    fill(saver, "source")
    stored = objects(archive, "source")
    expected = seen(saver, "source")
    assert len(expected) == 7
    saver.copy_thread("source", "target/2")
    for reader in (saver, archive.open()):
        assert seen(reader, "target/2") == seen(reader, "source") == expected
    assert objects(archive, "source") == stored
    assert marks(archive) == []


def test_parents_are_the_copies(saver: Any) -> None:
    """A copied checkpoint's parent is the copied parent."""
    fill(saver, "source")
    saver.copy_thread("source", "target")
    parent = found(saver, config("target", "", "3")).parent_config
    assert parent == config("target", "", "2")
    assert values_at(saver, parent) == {"large": LARGE, "k": 2}


def test_order_of_writes_is_kept(saver: Any) -> None:
    """Task paths come along, so the writes keep their order; those that wait for their checkpoint wait in both."""
    fill(saver, "source")
    saver.copy_thread("source", "target")
    assert writes_at(saver, config("target", "", "2")) == [
        ("task n", "k", "null"),
        ("task z", "__error__", "e"),
        ("task z", "k", "z"),
        ("task a", "k", "a"),
    ]
    put(saver, "target", id="9")
    assert writes_at(saver, config("target", "", "9")) == [("task e", "k", "early")]


def test_metadata_names_the_copy(saver: Any) -> None:
    """Metadata that names its own thread names the copy's in the copy, to filters too; another name stays."""
    put(saver, "source", id="1", metadata={"thread_id": "source", "origin": "source"})
    put(saver, "source", id="2", metadata={"thread_id": "other"})
    saver.copy_thread("source", "target")
    named = saver.list(whole_thread("target"), filter={"thread_id": "target"})
    assert [item.metadata for item in named] == [{"thread_id": "target", "origin": "source"}]
    assert found(saver, config("target", "", "2")).metadata == {"thread_id": "other"}
    assert ids(saver.list(whole_thread("source"), filter={"thread_id": "source"})) == ["1"]


def test_both_go_their_own_ways(archive: Archive) -> None:
    """What happens to one thread afterwards does not show in the other, not even the source's deletion."""
    saver = archive.open()
    fill(saver, "source")
    expected = seen(saver, "source")
    saver.copy_thread("source", "target")
    put(saver, "source", id="4", values={"k": "source only"})
    assert seen(saver, "target") == expected
    put(saver, "target", id="5", values={"k": "target only"})
    assert values_at(saver, config("source")) == {"k": "source only"}
    saver.delete_thread("source")
    assert [item for item in seen(archive.open(), "target") if item.checkpoint["id"] != "5"] == expected


def test_delta_chain_is_whole(saver: Any) -> None:
    """A delta channel's history in the copy is the source's."""
    last = put(saver, "source", id="000", values={"ch": "seed"})
    for number in range(1, 12):
        saver.put_writes(last.config, [("ch", number)], f"task{number}")
        last = put(saver, "source", id=f"{number:03}", parent=last, changed=("ch",))
    saver.copy_thread("source", "target")
    expected = history(saver, config("source"), "ch")
    assert len(expected["ch"]["writes"]) == 11
    assert history(saver, config("target"), "ch") == expected


def test_names_that_are_hashed(archive: Archive) -> None:
    """Thread ids and namespaces too long for a key are read back from the copy; an integer is a thread id."""
    saver = archive.open()
    source, target = "s" * 900, "ü" * 300
    fill(saver, source)
    saver.copy_thread(source, target)
    saver.copy_thread(target, 7)
    assert seen(archive.open(), target) == seen(saver, source) == seen(saver, "7")
    names = {summary.thread_id: summary.namespaces for summary in archive.open().threads()}
    assert names.keys() == {source, target, "7"}
    assert set(names.values()) == {("", "child", "child:1|grandchild:2", LONG_NAMESPACE)}


def test_runs_are_found_in_the_copy(archive: Archive) -> None:
    """The copy has the run's markers, so `delete_for_runs` finds its checkpoints there as well."""
    saver = archive.open()
    fill(saver, "source")
    saver.copy_thread("source", "target")
    archive.open().delete_for_runs(["R"])
    for thread_id in ("source", "target"):
        assert ids(saver.list(config(thread_id))) == ["3", "0"]


# Targets and sources that are special


def test_copy_to_itself(archive: Archive) -> None:
    """A copy to the thread itself changes nothing."""
    saver = archive.open()
    fill(saver, "source")
    stored = archive.keys()
    saver.copy_thread("source", "source")
    assert archive.keys() == stored


def test_missing_source(archive: Archive) -> None:
    """Of a source that is not there, or of which only writes are, nothing is copied, not even a mark."""
    saver = archive.open()
    saver.put_writes(config("writes only", "", "1"), [("k", 1)], "task")
    stored = archive.keys()
    saver.copy_thread("unknown", "target")
    saver.copy_thread("writes only", "target")
    assert archive.keys() == stored


def test_foreign_target(archive: Archive) -> None:
    """A target with a checkpoint that the source has not is refused by the argument's name, and left as it was."""
    saver = archive.open()
    fill(saver, "source")
    put(saver, "target", id="1", values={"k": "other"})
    put(saver, "target", id="4")
    stored = objects(archive)
    with pytest.raises(ValueError, match="target_thread_id"):
        saver.copy_thread("source", "target")
    assert objects(archive) == stored


@pytest.mark.parametrize("arguments", [(None, "t"), ("s", 1.5), ("s", "\ud800")])
def test_wrong_names(saver: Any, arguments: tuple[Any, Any]) -> None:
    """What cannot be a thread id is refused before any request."""
    with pytest.raises(ValueError, match="thread_id"):
        saver.copy_thread(*arguments)


def test_copying_again_brings_what_is_new() -> None:
    """A second copy adds what the source got since, and copies no object twice."""
    archive = MemoryArchive()
    saver = archive.open()
    fill(saver, "source")
    saver.copy_thread("source", "target")
    put(saver, "source", id="5", parent=put(saver, "source", id="4", values={"k": LARGE + "new"}), changed=())
    saver.put_writes(config("source", "", "1"), [("k", "late")], "late task")
    archive.bucket.clock_ms += 60_000
    again = archive.open()
    again.copy_thread("source", "target")
    copied = [request.source for round_ in again.driver.rounds for request in round_ if isinstance(request, Copy)]
    assert len(copied) == len(set(copied)) == 4
    assert seen(archive.open(), "target") == seen(saver, "source")


def test_copy_into_a_deleted_thread(archive: Archive) -> None:
    """A thread that was deleted may be copied to."""
    saver = archive.open()
    fill(saver, "source")
    put(saver, "target", id="other")
    saver.delete_thread("target")
    saver.copy_thread("source", "target")
    assert seen(archive.open(), "target") == seen(saver, "source")


# Killed and resumed


@pytest.mark.parametrize("after", [False, True])
def test_killed_copy_is_finished_by_the_next(after: bool) -> None:
    """A copy that fails at any request leaves whole checkpoints only, and the next one finishes it."""
    for number in range(100):
        bucket = FailingBucket()
        archive = MemoryArchive(bucket=bucket)
        fill(archive.open(), "source")
        expected = seen(archive.open(), "source")
        bucket.arm(number, after=after)
        try:
            archive.open().copy_thread("source", "target")
        except StoreUnavailableError:
            pass
        else:
            assert number > 20
            return
        bucket.arm(None)
        assert [item for item in seen(archive.open(), "target") if item not in expected] == []
        archive.open().copy_thread("source", "target")
        assert seen(archive.open(), "target") == expected
        assert marks(archive) == []
    pytest.fail("the copy never ended")


def begun(archive: MemoryArchive, *without: str) -> Any:
    """A target as a killed copy leaves it: a mark, and not all checkpoints."""
    saver = archive.open()
    fill(saver, "source")
    saver.copy_thread("source", "target")
    layout = archive.layout
    for checkpoint_id in without:
        archive.remove(layout.checkpoint("target", "", checkpoint_id))
    archive.write(f"{layout.thread('target')}_copying", b'{"format": 1, "source": "source", "began_ms": 1}\n')
    return saver


def test_nobody_prunes_what_is_being_copied() -> None:
    """While a copy has not ended, prunes and run deletions leave the target alone and do the other threads."""
    archive = MemoryArchive()
    saver = begun(archive, "1")
    put(saver, "other", id="2", parent=put(saver, "other", id="1"))
    stored = list(objects(archive, "target"))
    for call in (saver.plan_prune, saver.prune):
        with pytest.raises(ThreadBusyError, match="copy_thread"):
            call(["target", "other"])
    assert ids(saver.list(config("other"))) == ["2"]
    with pytest.raises(ThreadBusyError, match="target"):
        saver.delete_for_runs(["R"])
    assert ids(saver.list(config("source"))) == ["3", "0"]
    assert list(objects(archive, "target")) == stored


@pytest.mark.parametrize("begun_before", [False, True])
def test_nobody_copies_into_what_is_being_pruned(begun_before: bool) -> None:
    """While a removal's mark stands, a copy is refused and changes nothing; an old mark counts no more."""
    archive = MemoryArchive()
    saver = archive.open()
    if begun_before:
        begun(archive, "1")
    else:
        fill(saver, "source")
    archive.write(removing_in(archive.layout.thread("target"), "0" * 32), b'{"format": 1, "began_ms": 1}\n')
    stored = list(objects(archive, "target"))
    archive.bucket.clock_ms += 1_800_000
    with pytest.raises(ThreadBusyError, match="being removed from the target"):
        saver.copy_thread("source", "target")
    assert list(objects(archive, "target")) == stored
    archive.bucket.clock_ms += 1
    saver.copy_thread("source", "target")
    assert seen(archive.open(), "target") == seen(saver, "source")
    assert marks(archive) == []


def test_a_half_copied_source_is_refused() -> None:
    """What is still being copied to is not whole, so it is not copied further."""
    archive = MemoryArchive()
    saver = begun(archive, "1")
    with pytest.raises(ThreadBusyError, match="into the source"):
        saver.copy_thread("target", "third")
    assert list(objects(archive, "third")) == []
    saver.copy_thread("source", "target")
    saver.copy_thread("target", "third")
    assert seen(saver, "third") == seen(saver, "source")


@pytest.mark.parametrize("ended", [False, True])
def test_a_source_that_is_copied_to_while_it_is_listed(ended: bool) -> None:
    """A source with a gap is looked at again: a copy into it may have begun, or begun and ended, since the listing."""
    bucket = GatedBucket()
    archive = MemoryArchive(bucket=bucket)
    saver = archive.open()
    fill(saver, "source")
    saver.copy_thread("source", "target")
    layout = archive.layout
    parent = layout.checkpoint("target", "", "2")
    body = archive.read(parent)
    archive.remove(parent)
    for segment in archive.keys_of("segment"):
        archive.remove(segment)
    # Headers are read after the listing.
    bucket.holds = lambda request: isinstance(request, Get) and request.key == layout.checkpoint("target", "", "3")
    call = Background(lambda: archive.open().copy_thread("target", "third"))
    assert bucket.reached.wait(10)
    if ended:
        archive.write(parent, body)
    else:
        archive.write(copying_in(layout.thread("target")), b'{"format": 1, "source": "source", "began_ms": 1}\n')
    bucket.release()
    if ended:
        call.result()
        assert seen(archive.open(), "third") == seen(saver, "source")
    else:
        with pytest.raises(ThreadBusyError, match="into the source"):
            call.result()
        assert list(objects(archive, "third")) == []


@pytest.mark.parametrize("values", [{"k": 2}, {"k": 1, "more": "x" * 100}], ids=["same size", "another size"])
def test_another_content_under_the_same_id_is_refused(values: dict[str, Any]) -> None:
    """Where both have an id with different content, nothing is copied and the error names the key."""
    archive = MemoryArchive()
    saver = archive.open()
    put(saver, "source", id="2", parent=put(saver, "source", id="1", values={"k": 1}))
    put(saver, "target", id="1", values=values)
    stored = objects(archive, "target")
    with pytest.raises(ValueError, match="another checkpoint threads/thread_id=target/"):
        saver.copy_thread("source", "target")
    assert objects(archive, "target") == stored


def test_the_same_content_with_other_etags_is_the_same() -> None:
    """A store that encrypts with keys of its own gives every copy another ETag: then bytes are compared."""
    archive = MemoryArchive(bucket=SaltedBucket())
    saver = archive.open()
    fill(saver, "source")
    saver.copy_thread("source", "target")
    put(saver, "source", id="5", values={"k": 5})
    archive.open().copy_thread("source", "target")
    assert seen(archive.open(), "target") == seen(saver, "source")


def test_what_is_deleted_meanwhile_is_copied_again() -> None:
    """A target that is deleted while it is copied to is whole in the end."""
    bucket = GatedBucket()
    archive = MemoryArchive(bucket=bucket)
    fill(archive.open(), "source")
    bucket.holds = lambda request: isinstance(request, Copy) and request.source.endswith("/_checkpoint.msgpack")
    saver = copying_while(bucket, archive, lambda other: other.delete_thread("target"))
    assert seen(saver, "target") == seen(saver, "source")
    assert marks(archive) == []


def test_history_across_the_gap_is_refused() -> None:
    """A delta channel's history that ends at an ancestor not copied yet is an error, not a short history."""
    archive = MemoryArchive()
    saver = begun(archive, "1")
    with pytest.raises(StoreUnavailableError, match="copy"):
        history(saver, config("target", "", "3"), "delta")
    archive.open().copy_thread("source", "target")
    assert history(saver, config("target", "", "3"), "delta") == {"delta": {"writes": []}}


def test_deleting_a_half_copied_thread() -> None:
    """`delete_thread` clears what a killed copy left, its mark too."""
    archive = MemoryArchive()
    saver = begun(archive, "1")
    saver.delete_thread("target")
    assert list(objects(archive, "target")) == [archive.layout.deleted("target")]
    assert marks(archive) == []
    saver.copy_thread("source", "target")
    assert seen(saver, "target") == seen(saver, "source")


def test_old_values_are_copied_again() -> None:
    """A value that a killed copy left long ago may be swept at any moment, so it is copied again; a young one not."""
    for age_ms, expected in ((600_000, 0), (3_000_000, 1)):
        archive = MemoryArchive()
        begun(archive, "0", "1", "2", "3")
        archive.bucket.clock_ms += age_ms
        again = archive.open()
        again.copy_thread("source", "target")
        copied = [request for round_ in again.driver.rounds for request in round_ if isinstance(request, Copy)]
        assert sum("_values" in request.source for request in copied) == expected
        assert seen(again, "target") == seen(again, "source")


def test_the_mark_comes_first_and_goes_last() -> None:
    """The mark stands from before the first copied object until after the manifest; it names source and time."""
    archive = MemoryArchive()
    saver = archive.open()
    fill(saver, "source")
    kinds: list[str] = []
    saver.driver.rounds.clear()
    saver.copy_thread("source", "target")
    for round_ in saver.driver.rounds:
        for request in round_:
            if isinstance(request, PutRequest | Copy):
                kind = archive.layout.kind(request.key)
                assert kind is not None
                kinds += [kind] if kinds[-1:] != [kind] else []
            if isinstance(request, PutRequest) and request.key.endswith("_copying"):
                line = json.loads(request.body)
                assert (line["source"], line["began_ms"]) == ("source", archive.bucket.clock_ms)
    assert kinds == ["copying", "marker", "run", "value", "writes", "checkpoint", "segment"]


# A source that changes meanwhile


def copying_while(
    bucket: GatedBucket, archive: MemoryArchive, meanwhile: Any, *, thread_id: str = "source"
) -> MemorySaver:
    """Copy the thread; when the copy reaches what `bucket` holds, do something else."""
    saver = archive.open()
    call = Background(lambda: saver.copy_thread(thread_id, "target"))
    assert bucket.reached.wait(10)
    try:
        meanwhile(archive.open())
    finally:
        bucket.release()
    call.result()
    return archive.open()


def chain(saver: Any, length: int) -> None:
    last = None
    for number in range(length):
        values = {"k": number, "large": LARGE}
        changed = ("k",) if last else ("k", "large")
        last = put(saver, "source", id=f"{number:04}", parent=last, values=values, changed=changed)


@pytest.mark.parametrize("kind", ["value", "writes", "checkpoint"])
def test_source_is_pruned_meanwhile(kind: str) -> None:
    """A source that is pruned while it is copied gives a whole copy of what there was before, or is after."""
    bucket = GatedBucket()
    archive = MemoryArchive(bucket=bucket)
    fill(archive.open(), "source")
    bucket.holds = lambda request: isinstance(request, Copy) and archive.layout.kind(request.source) == kind
    saver = copying_while(bucket, archive, lambda other: other.prune(["source"], exclusive=True))
    # One checkpoint at the gate was copied before or is gone.
    assert seen(saver, "target") == seen(saver, "source")
    assert marks(archive) == []


def test_source_is_pruned_in_the_midst_of_its_checkpoints() -> None:
    """Where some old checkpoints were copied before they were pruned, the copy ends all the same."""
    bucket = GatedBucket()
    archive = MemoryArchive(bucket=bucket)
    chain(archive.open(), 6)
    middle = archive.layout.checkpoint("source", "", "0003")
    bucket.holds = lambda request: isinstance(request, Copy) and request.source == middle
    saver = copying_while(bucket, archive, lambda other: other.prune(["source"]))
    assert ids(saver.list(config("source"))) == ["0005"]
    assert seen(saver, "target")[-1] == seen(saver, "source")[-1]
    assert set(ids(saver.list(config("target")))) <= {f"{number:04}" for number in (0, 1, 2, 5)}
    assert marks(archive) == []
    saver.prune(["target"])
    assert seen(saver, "target") == seen(saver, "source")


def test_source_is_deleted_meanwhile() -> None:
    """A source that is deleted while it is copied is an error that names the target, whose mark stays."""
    bucket = GatedBucket()
    archive = MemoryArchive(bucket=bucket)
    chain(archive.open(), 6)
    middle = archive.layout.checkpoint("source", "", "0003")
    bucket.holds = lambda request: isinstance(request, Copy) and request.source == middle
    with pytest.raises(ThreadBusyError, match="delete_thread"):
        copying_while(bucket, archive, lambda other: other.delete_thread("source"))
    assert len(marks(archive)) == 1
    saver = archive.open()
    saver.delete_thread("target")
    assert list(saver.list(None)) == []


def test_source_grows_between_two_pages() -> None:
    """A checkpoint that shows up in a later page of the listing than its value and its run would is copied whole."""
    bucket = GatedBucket()
    archive = MemoryArchive(bucket=bucket)
    saver = archive.open()
    first = put(saver, "source", id="1", namespace="z", values={"k": 1})
    for number in range(PAGE_KEYS_MAX):
        saver.put_writes(config("source", "a", f"{number:04}"), [("k", number)], "task")
    bucket.holds = lambda request: isinstance(request, List) and request.token is not None

    def grow(other: MemorySaver) -> None:
        metadata = {"run_id": "late run"}
        put(other, "source", id="2", namespace="z", parent=first, values={"large": LARGE}, metadata=metadata)

    reader = copying_while(bucket, archive, grow)
    assert values_at(reader, config("target", "z")) == {"k": 1, "large": LARGE}
    reader.delete_for_runs(["late run"])
    assert ids(reader.list(config("target", "z"))) == ["1"]


def test_source_goes_on_meanwhile() -> None:
    """Checkpoints put while a copy is under way are in the copy whole, or not at all."""
    bucket = GatedBucket()
    archive = MemoryArchive(bucket=bucket)
    fill(archive.open(), "source")
    bucket.holds = lambda request: isinstance(request, Copy)
    expected = seen(archive.open(), "source")
    saver = copying_while(bucket, archive, lambda other: put(other, "source", id="5", values={"large": LARGE + "2"}))
    assert seen(saver, "target") == expected


# What it costs


def test_rounds_of_a_long_thread() -> None:
    """Ten thousand objects take their listing's pages and a round for each thousand, not one for each object."""
    archive = MemoryArchive()
    saver = archive.open()
    last = None
    for number in range(1000):
        last = put(saver, "source", id=f"{number:05}", parent=last, values={"k": number})
    saver.put_writes(last.config, [("k", 1)], "task")
    (batch,) = archive.keys_of("writes")
    for number in range(1000):
        folder = archive.layout.folder("source", "", f"{number:05}")
        for clock in range(9):
            archive.write(writes_in(folder, batch_name(clock, "00000000")), archive.read(batch))
    saver.driver.rounds.clear()
    saver.copy_thread("source", "target")
    rounds = [[type(request) for request in round_] for round_ in saver.driver.rounds]
    copies = [round_ for round_ in rounds if Copy in round_]
    assert sum(map(len, copies)) == 10_001
    assert len(copies) == 11
    # The listings of the source and, when all is there, of the target; the copies; and a few.
    assert len(rounds) <= 11 + 11 + 11 + 10
    # All that a put indexed is indexed in the copy.
    reader = archive.open()
    assert ids(reader.list(config("target"), filter={"step": 1})) == []
    requests = [request for round_ in reader.driver.rounds for request in round_]
    assert not any(archive.layout.kind(request.key) == "checkpoint" for request in requests if isinstance(request, Get))
