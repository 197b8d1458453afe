"""`prune` and `plan_prune`: what goes, what stays and why, and when large values are freed."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

import pytest
from kit import (
    Archive,
    FailingBucket,
    MemoryArchive,
    Put,
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
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from manifests.keys import removing_in
from s3_saver.bucket import Delete, Get
from s3_saver.errors import DeletionError, StoreUnavailableError
from s3_saver.operations.prune import PrunePlan

LARGE = "x" * 70_000
HOUR_MS = 3_600_000


def own(name: str) -> str:
    """A large value that has nothing in common with others."""
    return random.Random(name).randbytes(70_000).hex()


def chain(
    saver: Any, thread_id: Any = "t", names: str = "1234", *, namespace: str = "", writes: bool = True
) -> list[Put]:
    """A chain of checkpoints with a value each and one that never changes, each with a write."""
    puts: list[Put] = []
    for name in names:
        parent = puts[-1] if puts else None
        values = {"k": name, "fixed": f"fixed in {thread_id}"}
        changed = ("k",) if parent else ("k", "fixed")
        puts.append(put(saver, thread_id, id=name, namespace=namespace, parent=parent, values=values, changed=changed))
        if writes:
            saver.put_writes(puts[-1].config, [("k", name)], "task")
    return puts


def left(saver: Any, thread_id: Any = "t", namespace: str | None = None) -> list[str]:
    """The ids that the thread has, newest first."""
    where = whole_thread(thread_id) if namespace is None else config(thread_id, namespace)
    return ids(saver.list(where))


# Which threads and checkpoints


@on_a_real_server
@pytest.mark.parametrize("strategy", [None, "keep_latest"])
def test_the_newest_of_each_namespace_stays(archive: Archive, strategy: str | None) -> None:
    """The greatest id of each namespace stays, with its writes, values and parent's name; other threads stay whole."""
    saver = archive.open()
    for thread_id in ("t", "t2", "untouched", "t/1"):
        chain(saver, thread_id)
        # Neither the order of puts nor parents say which is newest.
        put(saver, thread_id, id="0", values={"k": "late"})
        chain(saver, thread_id, "789", namespace="child:1|x:2")
        chain(saver, thread_id, "A", namespace="child:2")
    others = {key for key in archive.keys_of("checkpoint") if "thread_id=untouched/" in key or "%2F1" in key}
    how = {} if strategy is None else {"strategy": strategy}
    archive.open().prune(["t", "unknown", "t2", "t"], **how)
    for reader in (saver, archive.open()):
        for thread_id in ("t", "t2"):
            assert left(reader, thread_id) == ["A", "9", "4"]
            item = found(reader, config(thread_id))
            assert item.checkpoint["channel_values"] == {"k": "4", "fixed": f"fixed in {thread_id}"}
            assert item.pending_writes == [("task", "k", "4")]
            assert item.parent_config == config(thread_id, "", "3")
            assert values_at(reader, config(thread_id, "child:1|x:2"))["k"] == "9"
        assert len(left(reader, "untouched")) == len(left(reader, "t/1")) == 9
    assert others <= set(archive.keys_of("checkpoint"))
    assert len(archive.keys_of("writes")) == 2 * 3 + 2 * 8


def test_integer_is_a_thread(saver: Any) -> None:
    """A thread's id may be an integer, here too."""
    chain(saver, 7)
    saver.prune([7])
    assert left(saver, "7") == ["4"]


@pytest.mark.parametrize("threads", ["t", b"t", None, 7])
def test_one_string_is_refused(saver: Any, threads: Any) -> None:
    """A string alone would be taken letter by letter, so it is refused."""
    chain(saver)
    for call in (saver.prune, saver.plan_prune):
        with pytest.raises(TypeError, match="thread_ids"):
            call(threads)
    assert len(left(saver)) == 4


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"strategy": "keep_all"}, "strategy"),
        ({"strategy": None}, "strategy"),
        ({"keep": 2}, "keep"),
        ({"strategy": "delete", "older_than": timedelta(days=1)}, "older_than"),
        ({"strategy": "keep_last", "keep": 0}, "keep"),
        ({"strategy": "keep_last", "keep": True}, "keep"),
        ({"strategy": "keep_last", "keep": "2"}, "keep"),
        ({"strategy": "keep_last", "older_than": 60}, "older_than"),
        ({"strategy": "keep_last", "older_than": timedelta(0)}, "older_than"),
    ],
)
def test_wrong_arguments_touch_nothing(how: dict[str, Any], named: str) -> None:
    """A wrong argument is a ValueError that names it, before any request."""
    saver = MemoryArchive().open()
    for call in (saver.prune, saver.plan_prune):
        with pytest.raises(ValueError, match=named):
            call(["t"], **how)
    assert saver.driver.rounds == []


def test_one_bad_thread_touches_nothing() -> None:
    """An id that cannot be a thread's is refused before the threads before it are touched."""
    saver = MemoryArchive().open()
    with pytest.raises(ValueError, match="thread_id"):
        saver.prune(["t", 1.5])
    assert saver.driver.rounds == []


def test_no_threads(archive: Archive) -> None:
    """No threads, and unknown ones, are no error and leave no trace."""
    saver = archive.open()
    for strategy in ("keep_latest", "keep_last", "delete"):
        saver.prune([], strategy=strategy)
        saver.prune(["unknown"], strategy=strategy)
    assert archive.keys() == []


@pytest.mark.parametrize("strategy", ["delete", "delete_all"])
def test_delete(archive: Archive, strategy: str) -> None:
    """Both names of the strategy delete the threads as `delete_thread` does."""
    saver = archive.open()
    for thread_id in ("a", "b", "c"):
        chain(saver, thread_id, "12")
    saver.prune(["a", "b", "a", "unknown"], strategy=strategy)
    assert [item.thread_id for item in saver.threads()] == ["c"]
    stored = [archive.layout.deleted(thread_id) for thread_id in ("a", "b")]
    assert archive.keys_of("deleted") == stored
    assert all("thread_id=c/" in key for key in archive.keys_of("checkpoint"))


def test_keep_last(saver: Any) -> None:
    """The newest `keep` of each namespace stay; more than there are is all."""
    chain(saver, names="123456")
    chain(saver, namespace="n", names="78")
    saver.prune(["t"], strategy="keep_last", keep=9)
    assert len(left(saver)) == 8
    saver.prune(["t"], strategy="keep_last", keep=3)
    assert left(saver, namespace="") == ["6", "5", "4"]
    assert left(saver, namespace="n") == ["8", "7"]
    saver.prune(["t"], strategy="keep_last")
    assert left(saver) == ["8", "6"]


def test_older_than() -> None:
    """With `older_than`, what the store took later stays, and the newest `keep` whatever their age."""
    archive = MemoryArchive()
    saver = archive.open()
    last = None
    for name in "123456":
        last = put(saver, id=name, parent=last, values={"k": name})
        archive.bucket.clock_ms += HOUR_MS
    # The last one is an hour old now, the first six hours.
    how: Any = {"strategy": "keep_last", "older_than": timedelta(hours=3, minutes=30)}
    archive.open().prune(["t"], **how)
    assert left(saver) == ["6", "5", "4"]
    archive.bucket.clock_ms += 100 * HOUR_MS
    archive.open().prune(["t"], keep=2, **how)
    assert left(saver) == ["6", "5"]
    archive.open().prune(["t"], **how)
    assert left(saver) == ["6"]


# What a remaining checkpoint needs


def delta_chain(saver: Any, length: int, snapshots: dict[int, Any], **metadata: Any) -> list[Put]:
    """A chain with a delta channel "log", which has a snapshot at some places and writes everywhere."""
    puts: list[Put] = []
    for number in range(length):
        values = {"log": _DeltaSnapshot(snapshots[number])} if number in snapshots else {}
        counted = {} if number in snapshots else metadata
        parent = puts[-1] if puts else None
        puts.append(
            put(
                saver, id=f"{number:03}", parent=parent, values=values, changed=("log", "branch:to:x"), metadata=counted
            )
        )
        saver.put_writes(puts[-1].config, [("log", number), ("branch:to:x", None)], "task")
    return puts


COUNTED = {"counters_since_delta_snapshot": {"log": [1, 1]}}
EARLY_COUNTED = {"delta_updates_since_snapshot": {"log": 1}}


@pytest.mark.parametrize("metadata", [COUNTED, EARLY_COUNTED, {}])
@pytest.mark.parametrize("snapshot", [0, 4, 8])
def test_ancestors_to_the_seed_stay(metadata: dict[str, Any], snapshot: int) -> None:
    """All from the nearest snapshot to the head stay, whether counters, a snapshot or writes tell of the channel."""
    archive = MemoryArchive()
    saver = archive.open()
    delta_chain(saver, 10, {snapshot: ["seed"]}, **metadata)
    before = history(saver, config(), "log")
    archive.open().prune(["t"])
    assert left(saver) == [f"{number:03}" for number in range(9, snapshot - 1, -1)]
    assert history(archive.open(), config(), "log") == before


@pytest.mark.parametrize("metadata", [COUNTED, {}])
def test_without_a_seed_the_farthest_write_counts(metadata: dict[str, Any]) -> None:
    """Where no ancestor has a value, all through the farthest one with a write stay."""
    saver = MemoryArchive().open()
    first = put(saver, id="!1", metadata={"step": -1})
    second = put(saver, id="!2", parent=first, metadata={"step": 0})
    last = second
    for number in range(3):
        last = put(saver, id=f"{number}", parent=last, changed=("log",), metadata=metadata)
        saver.put_writes(last.config, [("log", number)], "task")
    saver.prune(["t"])
    assert left(saver) == ["2", "1", "0"]


def test_channel_never_written_needs_nothing(saver: Any) -> None:
    """A delta channel that is counted but was never written has no version, and keeps nothing."""
    last = None
    for number in range(4):
        metadata = {"counters_since_delta_snapshot": {"log": [0, number]}}
        last = put(saver, id=f"{number}", parent=last, values={"k": number}, metadata=metadata)
        saver.put_writes(last.config, [("k", number)], "task")
    saver.prune(["t"])
    assert left(saver) == ["3"]


@pytest.mark.parametrize("name", ["__log", "branch:log", "__start"])
def test_delta_channel_of_any_name(name: str) -> None:
    """A delta channel may be named like LangGraph's own channels."""
    saver = MemoryArchive().open()
    last = put(saver, id="0", values={name: _DeltaSnapshot(["seed"])}, metadata={})
    for number in range(1, 4):
        saver.put_writes(last.config, [(name, number)], "task")
        metadata = {"counters_since_delta_snapshot": {name: [number, number]}}
        last = put(saver, id=f"{number}", parent=last, changed=(name,), metadata=metadata)
    before = history(saver, config(), name)
    saver.prune(["t"])
    assert history(saver, config(), name) == before
    assert before[name]["seed"] == _DeltaSnapshot(["seed"])


def test_ordinary_thread_reads_no_writes() -> None:
    """A prune of an ordinary thread of a thousand checkpoints reads no writes, and takes few rounds."""
    archive = MemoryArchive()
    saver = archive.open()
    last = None
    for number in range(1000):
        last = put(saver, id=f"{number:04}", parent=last, values={"k": number, f"branch:to:{number % 7}": None})
        if number % 10 == 0:
            saver.put_writes(last.config, [("k", number), ("branch:to:x", None)], "task")
    pruning = archive.open()
    pruning.prune(["t"])
    assert left(saver) == ["0999"]
    requests = [request for round_ in pruning.driver.rounds for request in round_]
    gets = [request for request in requests if isinstance(request, Get)]
    assert not any(archive.layout.kind(request.key) == "writes" for request in gets)
    assert sum(archive.layout.kind(request.key) == "checkpoint" for request in gets) < 64
    assert len(pruning.driver.rounds) <= 20
    # The checkpoints, their writes, and the mark.
    assert sum(len(request.keys) for request in requests if isinstance(request, Delete)) == 999 + 100 + 1


def test_sends_of_an_old_format_keep_their_parent(saver: Any) -> None:
    """A head of a format below 4 keeps the parent that holds its sends, and only that."""
    first = put(saver, id="1", v=3)
    second = put(saver, id="2", parent=first, v=3)
    put(saver, id="3", parent=second, v=3)
    for stored in (first, second):
        saver.put_writes(stored.config, [("__pregel_tasks", "send"), ("k", 1)], "task")
    before = found(saver, config())
    assert before.checkpoint["channel_values"] == {"__pregel_tasks": ["send"]}
    saver.prune(["t"])
    assert left(saver) == ["3", "2"]
    assert found(saver, config()).checkpoint["channel_values"] == before.checkpoint["channel_values"]


@pytest.mark.parametrize("v", [1, 3, 4])
def test_parent_without_sends_goes(saver: Any, v: int) -> None:
    """A parent without sends is not needed, nor is any parent of a head of format 4."""
    first = put(saver, id="1", v=v)
    put(saver, id="2", parent=first, v=v)
    saver.put_writes(first.config, [("k", 1), *([("__pregel_tasks", "send")] if v == 4 else [])], "task")
    saver.prune(["t"])
    assert left(saver) == ["2"]


def test_unchanged_value_survives_its_writer() -> None:
    """A value that was stored by a checkpoint that is pruned is read by those that never named it anew."""
    archive = MemoryArchive()
    saver = archive.open()
    first = put(saver, id="1", values={"small": "s", "large": LARGE})
    second = put(saver, id="2", parent=first, values={"k": 2}, changed=("k",))
    archive.open().prune(["t"], exclusive=True)
    assert values_at(archive.open(), second.config) == {"k": 2, "small": "s", "large": LARGE}
    put(archive.open(), id="3", parent=second, values={"k": 3}, changed=("k",))
    archive.open().prune(["t"], exclusive=True)
    assert values_at(archive.open(), config()) == {"k": 3, "small": "s", "large": LARGE}


# Writes and values


def test_writes_that_wait_for_their_checkpoint_stay(archive: Archive) -> None:
    """Writes of a run in flight survive every prune, and are there when their checkpoint comes."""
    saver = archive.open()
    puts = chain(saver, names="12")
    saver.put_writes(config("t", "", "3"), [("k", "early")], "task")
    saver.put_writes(config("t", "new", "1"), [("k", "early")], "task")
    saver.prune(["t"])
    saver.prune(["t"], exclusive=True)
    put(saver, id="3", parent=puts[-1])
    put(saver, id="1", namespace="new")
    assert writes_at(saver, config()) == writes_at(saver, config("t", "new")) == [("task", "k", "early")]


def test_writes_left_by_a_killed_prune_go() -> None:
    """Writes that a prune left behind, because they came late or it was killed, go with the next."""
    archive = MemoryArchive()
    saver = archive.open()
    chain(saver)
    saver.prune(["t"])
    saver.put_writes(config("t", "", "2"), [("k", "late")], "task")
    saver.put_writes(config("t", "", "5"), [("k", "early")], "task")
    archive.open().prune(["t"])
    assert [key.split("/")[3].split(".")[1] for key in archive.keys_of("writes")] == ["5", "4"]


def test_values_are_freed_after_the_grace() -> None:
    """A value that nothing needs outlives its last reference by an hour; one that is needed stays for ever."""
    archive = MemoryArchive()
    saver = archive.open()
    first = put(saver, id="1", values={"shared": LARGE, "own": own("1")})
    put(saver, id="2", parent=first, values={"shared": LARGE, "own": own("2")}, changed=("own",))
    archive.bucket.clock_ms += 10 * HOUR_MS
    # The value is old, but the reference to it ends only now.
    saver.prune(["t"])
    assert len(archive.keys_of("value")) == 3
    archive.bucket.clock_ms += HOUR_MS - 1000
    saver.prune(["t"])
    assert len(archive.keys_of("value")) == 3
    archive.bucket.clock_ms += 2000
    saver.prune(["t"])
    assert len(archive.keys_of("value")) == 2
    archive.bucket.clock_ms += 100 * HOUR_MS
    saver.prune(["t"])
    assert values_at(archive.open(), config()) == {"shared": LARGE, "own": own("2")}


def test_exclusive_frees_values_at_once() -> None:
    """With `exclusive` a value that nothing needs goes at once, also one that no checkpoint ever named."""
    archive = MemoryArchive()
    saver = archive.open()
    first = put(saver, id="1", values={"shared": LARGE, "own": own("1")})
    put(saver, id="2", parent=first, values={"shared": LARGE, "own": own("2")}, changed=("own",))
    archive.write(archive.layout.value("t", "orphan"), b"a writer died before its checkpoint")
    saver.prune(["t"], exclusive=True)
    assert len(archive.keys_of("value")) == 2
    assert values_at(archive.open(), config()) == {"shared": LARGE, "own": own("2")}


def test_orphaned_value_goes_after_the_grace() -> None:
    """A value that no checkpoint ever named goes when it is an hour old, not before."""
    archive = MemoryArchive()
    saver = archive.open()
    put(saver, id="1")
    archive.write(archive.layout.value("t", "orphan"), b"a writer died before its checkpoint")
    archive.bucket.clock_ms += HOUR_MS - 1
    saver.prune(["t"])
    assert len(archive.keys_of("value")) == 1
    archive.bucket.clock_ms += 2
    saver.prune(["t"])
    assert archive.keys_of("value") == []


def test_run_goes_on_after_a_prune() -> None:
    """A process that knew the pruned parents puts on as if nothing had happened, also a parent that is gone."""
    archive = MemoryArchive()
    saver = archive.open()
    first = put(saver, id="1", values={"large": LARGE, "small": "s"})
    second = put(saver, id="2", parent=first, values={"k": 2}, changed=("k",))
    archive.open().prune(["t"])
    put(saver, id="3", parent=second, values={"k": 3}, changed=("k",))
    assert values_at(archive.open(), config()) == {"large": LARGE, "small": "s", "k": 3}
    fork = put(saver, id="4", parent=first, values={"k": "fork"}, changed=("k",))
    assert values_at(archive.open(), fork.config) == {"large": LARGE, "small": "s", "k": "fork"}


def test_removal_is_recorded() -> None:
    """A record names what goes, and stays: so a lost checkpoint can be told from a pruned one."""
    archive = MemoryArchive()
    chain(archive.open())
    archive.open().prune(["t"])
    assert len(archive.keys_of("removal")) == 1
    archive.open().prune(["t"])
    assert len(archive.keys_of("removal")) == 1


# The plan


def fates(plan: PrunePlan) -> list[tuple[str, str, str, bool]]:
    return [
        (thread.thread_id, fate.namespace, fate.checkpoint_id, fate.stays)
        for thread in plan.threads
        for fate in thread.fates
    ]


def test_plan_says_what_prune_does(archive: Archive) -> None:
    """A plan changes nothing and names every checkpoint; the prune does just that."""
    saver = archive.open()
    chain(saver)
    chain(saver, namespace="child:1", names="AB")
    chain(saver, "t2", names="xy")
    stored = archive.keys()
    plan = saver.plan_prune(["t", "t2", "unknown"])
    assert archive.keys() == stored
    assert fates(plan) == [
        ("t", "", "4", True),
        ("t", "", "3", False),
        ("t", "", "2", False),
        ("t", "", "1", False),
        ("t", "child:1", "B", True),
        ("t", "child:1", "A", False),
        ("t2", "", "y", True),
        ("t2", "", "x", False),
    ]
    saver.prune(["t", "t2", "unknown"])
    assert [fate[2] for fate in fates(saver.plan_prune(["t", "t2"]))] == ["4", "B", "y"]


def test_plan_counts_bytes() -> None:
    """The plan's bytes are those that the prune frees at once."""
    archive = MemoryArchive()
    saver = archive.open()
    chain(saver)
    plan = saver.plan_prune(["t"])
    sizes = {key: len(archive.read(key)) for kind in ("checkpoint", "writes") for key in archive.keys_of(kind)}
    saver.prune(["t"])
    stayed = set(archive.keys())
    assert plan.bytes == sum(size for key, size in sizes.items() if key not in stayed) > 0


def test_plan_prints_as_a_table() -> None:
    """A plan prints one line for each checkpoint, with its fate and the reason, and a sum."""
    saver = MemoryArchive().open()
    delta_chain(saver, 4, {2: ["seed"]}, **COUNTED)
    chain(saver, "other", names="12", namespace="n")
    table = str(saver.plan_prune(["t", "other"]))
    head, *lines, total = table.splitlines()
    assert head.split() == ["thread", "namespace", "checkpoint", "why", "bytes"]
    assert [(line.split()[0], "stays" in line.split()) for line in lines] == [
        ("t", True),
        ("t", True),
        ("t", False),
        ("t", False),
        ("other", True),
        ("other", False),
    ]
    assert "delta channel 'log'" in lines[1]
    assert total.startswith("3 of 6 checkpoints go, ")
    assert str(saver.plan_prune([])).splitlines()[-1] == "0 of 0 checkpoints go, 0 bytes"


def test_plan_of_a_deletion(saver: Any) -> None:
    """A plan of "delete" names everything, and says that the thread is deleted."""
    chain(saver, names="12")
    plan = saver.plan_prune(["t"], strategy="delete")
    assert fates(plan) == [("t", "", "2", False), ("t", "", "1", False)]
    assert "delete" in plan.threads[0].fates[0].why


# What goes wrong

# Metadata as LangGraph keeps it where a delta channel was written and not stored.
COUNTED = {"source": "loop", "step": 1, "counters_since_delta_snapshot": {"log": [1, 1]}}


def test_locked_keys_are_reported() -> None:
    """What could not be deleted is named by key, and stays whole, values too; the rest is done, other threads too."""
    archive = MemoryArchive()
    saver = archive.open()
    for thread_id in ("t", "t2"):
        last = None
        for name in "1234":
            last = put(saver, thread_id, id=name, parent=last, values={"own": own(name)})
            saver.put_writes(last.config, [("k", name)], "task")
    layout = archive.layout
    writes = next(key for key in archive.keys_of("writes") if "thread_id=t/" in key and ".1/" in key)
    locked = {layout.checkpoint("t", "", "2"), writes}
    archive.bucket.locked |= locked
    with pytest.raises(DeletionError) as raised:
        archive.open().prune(["t", "t2"], exclusive=True)
    assert raised.value.failed.keys() == locked
    assert all("locked" in reason for reason in raised.value.failed.values())
    reader = archive.open()
    assert left(reader) == ["4", "2"]
    assert left(reader, "t2") == ["4"]
    item = found(reader, config("t", "", "2"))
    assert item.checkpoint["channel_values"] == {"own": own("2")}
    assert item.pending_writes == [("task", "k", "2")]
    assert len([key for key in archive.keys_of("value") if "thread_id=t/" in key]) == 2
    archive.bucket.locked.clear()
    archive.open().prune(["t"], exclusive=True)
    assert left(archive.open()) == ["4"]
    assert len(archive.keys_of("value")) == 2
    assert len(archive.keys_of("writes")) == 2


def test_what_a_locked_checkpoint_needs_stays() -> None:
    """Where checkpoints cannot be deleted, those that they need for a delta channel stay too, and are named."""
    archive = MemoryArchive()
    saver = archive.open()
    first = put(saver, id="1", values={"log": "seed"})
    saver.put_writes(first.config, [("log", "w1")], "task")
    second = put(saver, id="2", parent=first, changed=("log",), metadata=COUNTED)
    third = put(saver, id="3", parent=second, changed=("log",), metadata=COUNTED)
    put(saver, id="4", parent=third, values={"log": "snapshot"})
    before = history(saver, third.config, "log")
    assert before == {"log": {"seed": "seed", "writes": [("task", "log", "w1")]}}
    archive.bucket.locked.add(archive.layout.checkpoint("t", "", "3"))
    with pytest.raises(DeletionError) as raised:
        archive.open().prune(["t"])
    assert raised.value.failed.keys() == {archive.layout.checkpoint("t", "", name) for name in "123"}
    assert [why.startswith("needed by") for _, why in sorted(raised.value.failed.items())] == [False, True, True]
    assert history(archive.open(), third.config, "log") == before
    archive.bucket.locked.clear()
    archive.open().prune(["t"])
    assert left(archive.open()) == ["4"]


def test_an_old_mark_is_swept() -> None:
    """The mark of a removal whose process died goes with a prune an hour later; a younger one stays."""
    archive = MemoryArchive()
    saver = archive.open()
    put(saver, id="2", parent=put(saver, id="1"))
    mark = removing_in(archive.layout.thread("t"), "0" * 32)
    archive.write(mark, b'{"format": 1, "began_ms": 1}\n')
    saver.prune(["t"])
    assert archive.keys_of("removing") == [mark]
    archive.bucket.clock_ms += 3_600_001
    saver.prune(["t"])
    assert archive.keys_of("removing") == []
    assert left(saver) == ["2"]


def test_locked_value_is_reported() -> None:
    """A value that cannot be deleted is named too."""
    archive = MemoryArchive()
    saver = archive.open()
    first = put(saver, id="1", values={"own": LARGE})
    put(saver, id="2", parent=first, values={"own": "small"})
    (value,) = archive.keys_of("value")
    archive.bucket.locked.add(value)
    with pytest.raises(DeletionError) as raised:
        saver.prune(["t"], exclusive=True)
    assert raised.value.failed.keys() == {value}
    assert left(saver) == ["2"]


@pytest.mark.parametrize("after", [False, True])
def test_killed_prune_is_finished_by_the_next(after: bool) -> None:
    """A prune that fails at any request leaves whole checkpoints only, and the next one finishes it."""
    for number in range(60):
        bucket = FailingBucket()
        archive = MemoryArchive(bucket=bucket)
        saver = archive.open()
        last = None
        for name in "12345":
            last = put(saver, id=name, parent=last, values={"own": own(name), "fixed": LARGE})
            saver.put_writes(last.config, [("k", name)], "task")
        bucket.arm(number, after=after)
        try:
            archive.open().prune(["t"], exclusive=True)
        except StoreUnavailableError:
            pass
        else:
            assert number > 6
            return
        bucket.arm(None)
        reader = archive.open()
        for item in reader.list(config()):
            name = item.checkpoint["id"]
            assert item.checkpoint["channel_values"] == {"own": own(name), "fixed": LARGE}
            assert item.pending_writes == [("task", "k", name)]
        assert left(reader)[0] == "5"
        reader.prune(["t"], exclusive=True)
        assert left(reader) == ["5"]
        assert len(archive.keys_of("writes")) == 1
        assert len(archive.keys_of("value")) == 2
    pytest.fail("the prune never ended")


def test_keep_last_of_a_delta_thread() -> None:
    """Keeping many checkpoints of a thread with delta channels reads no writes twice, and takes no round for each."""
    archive = MemoryArchive()
    saver = archive.open()
    delta_chain(saver, 400, {100: ["seed"]})
    planning = archive.open()
    plan = planning.plan_prune(["t"], strategy="keep_last", keep=150)
    # The oldest of the 150 needs its ancestors back to the snapshot at 100.
    assert sum(fate.stays for fate in plan.threads[0].fates) == 300
    assert len(planning.driver.rounds) < 10
    requests = [request for round_ in planning.driver.rounds for request in round_]
    assert len(requests) == len(set(requests))
