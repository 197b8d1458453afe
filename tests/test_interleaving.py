"""Several operations in every order of their requests: nothing is lost, and nothing is seen by halves.

How many schedules a test ran is printed with `pytest -s`; with EVERY_SCHEDULE=1 in the environment those are run too
that take minutes. Orders that differ in nothing but the swap of two requests
that cannot matter to each other count as one.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from langgraph.checkpoint.serde.types import TASKS
from memory_saver import MemorySaver
from points import BIG, LONG, MORE, SUB, A, B, C, D, E, Start, archive, deletes, filled, moved, world_of, written
from reading import (
    LAYOUT,
    Archive,
    Point,
    config_of,
    keys_of,
    listed,
    place_of,
    put_writes,
    same,
    store_writes,
    writes_of,
)
from simulation import (
    COUNTS,
    Check,
    Make,
    World,
    copy_of,
    explore,
    process,
    repeated,
    sample,
)

from s3_saver.bucket import Operation
from s3_saver.drivers.memory import MemoryBucket
from s3_saver.errors import CheckpointConflictError

EVERY_SCHEDULE = bool(os.environ.get("EVERY_SCHEDULE"))


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    """Prints how many schedules a test ran."""
    COUNTS.clear()
    yield
    for name, count in COUNTS.items():
        print(f"{count:6} schedules: {name}")


# Several operations at once


def run(name: str, make: Make, allowed: Archive, end: Check, last: Check | None = None) -> int:
    """Every schedule: all that is visible is sound after each step, and `end` holds at the end.

    Whatever was visible before is not looked at again. `last` is called once for each state that schedules end in.
    """
    seen: set[Any] = set()

    def node(world: World) -> None:
        visible = frozenset(
            world.name_of(key) for key in world.bucket.objects if LAYOUT.kind(key) not in ("run", "marker")
        )
        if visible not in seen:
            seen.add(visible)
            allowed.sound(world.bucket)

    def checked_end(world: World) -> None:
        end(world)
        if last is not None and ("last", state := world.state()) not in seen:
            seen.add(("last", state))
            last(world)

    count = explore(make, node=node, end=checked_end)
    COUNTS[name] += count
    return count


def no_errors(world: World) -> None:
    assert errors_of(world) == {}


def errors_of(world: World) -> dict[str, Exception]:
    return {name: running.error for name, running in world.running.items() if running.error is not None}


PUT_TWICE = {
    "small": ((), Point("1", values={"messages": ["a"]}), Point("1", values={"messages": ["b"]})),
    "small child": ((A, B), C, replace(C, values={"messages": ["other"], "document": BIG})),
    "large": ((A, B), D, replace(D, values={"messages": ["a"], "document": "other " * 60})),
    "large against small": ((A, B), D, replace(D, values={"messages": ["a"], "document": "other"})),
    "new run": ((A, B), replace(C, run="run 2"), replace(C, run="run 3")),
    "other parent": ((A, B), C, replace(C, parent="1")),
    "with a channel less": ((), A, replace(A, values={"log": ["seed"]}, versions={"messages": 1, "log": 1})),
}
each_pair = pytest.mark.parametrize("name", PUT_TWICE)
lossy = pytest.mark.parametrize("lost", [False, True], ids=["", "answers lost"])


def begun(operation: Start, lost: bool) -> Start:
    return lambda saver: repeated(operation(saver)) if lost else operation(saver)


@lossy
@each_pair
def test_two_puts_of_the_same(name: str, lost: bool) -> None:
    """Two processes put one checkpoint with the same content: both succeed, and there is one."""
    before, point, _ = PUT_TWICE[name]
    allowed = archive(point, kept=before)

    def last(world: World) -> None:
        assert point.place in allowed.check(world.bucket)

    make = world_of(*before, start={"one": begun(point.put, lost), "two": point.put})
    assert run(f"two puts of the same, {name}", make, allowed, no_errors, last) >= 2


@lossy
@each_pair
def test_two_puts_that_differ(name: str, lost: bool) -> None:
    """Two processes put one id with different content: one succeeds, the other learns of the conflict."""
    before, *pair = PUT_TWICE[name]
    points = dict(zip(("one", "two"), pair, strict=True))
    allowed = archive(*pair, kept=before)
    winners = set()

    def end(world: World) -> None:
        ((loser, error),) = errors_of(world).items()
        assert isinstance(error, CheckpointConflictError)
        (winner,) = points.keys() - {loser}
        winners.add(winner)
        found = process(world.bucket).get_tuple(points[winner].config)
        assert found is not None
        assert same(found, points[winner])

    start = {writer: begun(point.put, lost and writer == "one") for writer, point in points.items()}
    run(f"two puts that differ, {name}", world_of(*before, start=start), allowed, end)
    assert winners == {"one", "two"}


def test_put_of_parent_and_child() -> None:
    """A child that is put while its parent is stands on its own values where the parent is not there yet."""
    child = replace(D, id="4", parent="3", new=())
    allowed = archive(D, child, kept=(A, B))

    def last(world: World) -> None:
        assert len(allowed.check(world.bucket)) == 4

    make = world_of(A, B, start={"parent": D.put, "child": child.put})
    run("put of parent and child", make, allowed, no_errors, last)


def test_put_and_its_writes() -> None:
    """Writes come before or after their checkpoint, and are there with it."""
    allowed = archive(D, kept=(A, B))
    allowed.writes[D.place] += [writes_of("task 2", MORE), writes_of("task 3", MORE)]

    def end(world: World) -> None:
        assert errors_of(world) == {}
        found = allowed.check(world.bucket)[D.place]
        assert found.pending_writes == [*writes_of("task 2", MORE), *writes_of("task 3", MORE)]

    start = {task: partial(put_writes, point=D, task=task, writes=MORE) for task in ("task 2", "task 3")}
    run("put and its writes", world_of(A, B, start={"put": D.put, **start}), allowed, end)


@lossy
@pytest.mark.parametrize("channel", ["log", "__error__"])
def test_two_put_writes_of_the_same_task(channel: str, lost: bool) -> None:
    """Of two writes with one (task, idx) one stands: the first, or the last where the channel is a special one.

    Which came first is told by the clock that each process read when it began. Once both are stored it stands for
    every reader and for ever.
    """
    allowed = archive(kept=(A, B))
    pair = [writes_of("task", [(channel, name)]) for name in ("one", "two")]
    allowed.writes[B.place] += pair
    standing = pair[channel == "__error__"]

    def end(world: World) -> None:
        assert errors_of(world) == {}
        for _ in range(2):
            found = process(world.bucket).get_tuple(B.config)
            assert found is not None
            assert set(found.pending_writes or ()) == {*writes_of("task 1", written(B)), *standing}

    def start(value: str) -> Start:
        return begun(partial(put_writes, point=B, task="task", writes=[(channel, value)]), lost)

    make = world_of(A, B, start={"one": start("one"), "two": start("two")})
    assert run("two put_writes of one task", make, allowed, end) >= 1


def test_a_slow_clock_comes_after_what_it_has_read() -> None:
    """A write stands against that of a process which read it before it wrote, however slow that one's clock is."""
    bucket = MemoryBucket()
    first = filled(bucket, A)
    # The first process's clock is an hour fast.
    first._shared.cache.tick((time.time_ns() + 3_600 * 10**9) // 1000)
    store_writes(first, A, "task", [("log", "first")])
    second = process(bucket)
    second.get_tuple(A.config)
    store_writes(second, A, "task", [("log", "second")])
    found = process(bucket).get_tuple(A.config)
    assert found is not None
    assert [write for write in found.pending_writes or () if write[0] == "task"] == [("task", "log", "first")]


# Deletion beside other operations


def deleted(world: World, thread: str = "thread") -> None:
    """Asserts that one more deletion leaves the tombstone alone."""
    world.saver().delete_thread(thread)
    folder = LAYOUT.thread(thread)
    assert [key for key in world.bucket.objects if key.startswith(folder)] == [LAYOUT.deleted(thread)]


# What is there, what is put, and whether the process that puts it has stored, and remembers, what is there.
PUT_AND_DELETE = {
    "small": ((A,), C, False),
    "small, in memory": ((A, B), C, True),
    "large": ((A, B), D, False),
    "large, in memory": ((A, B), D, True),
    "new run": ((A, B), replace(C, run="run 2"), True),
    "long name": (moved(LONG, A), *moved(LONG, replace(C, parent="1")), True),
    "long name, new lineage": (moved(LONG, replace(B, run=None)), *moved(LONG, replace(A, run=None)), False),
    "first of the thread": ((), A, False),
    "again": ((A, B), B, False),
}


# Of these there are 800 to 5,000 schedules where answers are lost, so only some are run.
THOUSANDS = ("small", "large", "again", "first of the thread", "long name, new lineage")


@lossy
@pytest.mark.parametrize("name", PUT_AND_DELETE)
def test_put_and_delete(name: str, lost: bool) -> None:
    """What a put leaves in a thread that is being deleted reads whole or as deleted; the next deletion removes it."""
    before, point, remembers = PUT_AND_DELETE[name]
    allowed = archive(*before, point)

    start = {"put": begun(point.put, lost), "delete": deletes(point.thread)}
    make = world_of(*before, start=start, remembers="put" if remembers else "")
    title = f"put and delete, {name}"
    if lost and name in THOUSANDS and not EVERY_SCHEDULE:
        COUNTS[title] += sample(make, range(150), end=lambda world: ended(world, allowed, point.thread))
    else:
        run(title, make, allowed, no_errors, lambda world: deleted(world, point.thread))


def ended(world: World, allowed: Archive, thread: str) -> None:
    no_errors(world)
    allowed.sound(world.bucket)
    deleted(world, thread)


def test_put_writes_and_delete() -> None:
    """Writes that arrive in a thread that is being deleted are not seen, and the next deletion removes them."""
    allowed = archive(A, B)
    allowed.writes[B.place].append(writes_of("task 2", MORE))

    start = {"writes": partial(put_writes, point=B, task="task 2", writes=MORE), "delete": deletes()}
    run("put_writes and delete", world_of(A, B, start=start), allowed, no_errors, deleted)


def test_two_deletes() -> None:
    """Two deletions of one thread both succeed and leave nothing but the tombstone."""

    def end(world: World) -> None:
        assert errors_of(world) == {}
        assert list(world.bucket.objects) == [LAYOUT.deleted("thread")]

    small = replace(A, values={"messages": ["a"]}, run=None)
    make = world_of(small, start={"one": deletes(), "two": deletes()})
    run("two deletes", make, archive(small), end)


def test_a_thread_begun_anew_has_its_name() -> None:
    """A process that has put a thread's name and markers puts them again when the thread begins anew."""
    bucket = MemoryBucket()
    first, *_ = points = moved(LONG, A, B)
    saver = filled(bucket, *points)
    process(bucket).delete_thread(LONG)
    renewed = replace(first, id="4")
    renewed.store(saver)
    archive(kept=(renewed,)).check(bucket)
    assert len(keys_of(bucket, "name", "run", "marker")) == 3
    assert [place_of(item) for item in process(bucket).list(None)] == [renewed.place]


# Readers beside writers

Read = Callable[[MemorySaver, str], Operation[Any]]

READS: dict[str, Read] = {
    "newest": lambda saver, thread: saver._get_tuple(config_of(thread)),
    "by id": lambda saver, thread: saver._get_tuple(config_of(thread, "", "2")),
    "by id, the first": lambda saver, thread: saver._get_tuple(config_of(thread, "", "1")),
    "list": lambda saver, thread: listed(saver, config_of(thread)),
    "list all namespaces": lambda saver, thread: listed(saver, config_of(thread, None)),
    "list all threads": lambda saver, thread: listed(saver, None),
    "list with a filter": lambda saver, thread: listed(saver, config_of(thread), filter={"step": 1}),
    "history": lambda saver, thread: saver._delta_history(config_of(thread, "", "3"), ["log"]),
    "history of the newest": lambda saver, thread: saver._delta_history(config_of(thread), ["log"]),
}
each_read = pytest.mark.parametrize("name", READS)
SMALL = replace(A, values={"messages": ["a"], "log": ["seed"]}, run=None)
SMALL_CHILD = SMALL.child("2", values={"messages": ["a"]}, versions={"messages": 1, "log": 2})
CHAIN = (SMALL, SMALL_CHILD, SMALL_CHILD.child("3"))
# `log` as it is rebuilt for the third of the chain, for the second, and for the first.
HISTORIES = (
    {"seed": ["seed"], "writes": [("task 1", "log", "w1"), ("task 1", "log", "w2")]},
    {"seed": ["seed"], "writes": [("task 1", "log", "w1")]},
    {"writes": []},
)


def check_read(name: str, world: World, allowed: Archive) -> None:
    """Asserts that what a read returned is whole: a checkpoint with all its writes, or nothing."""
    result = world.running["read"].result
    if name.startswith("history"):
        assert result["log"] in (HISTORIES if name.endswith("newest") else (HISTORIES[0], HISTORIES[2]))
        return
    for one in result if isinstance(result, list) else [] if result is None else [result]:
        allowed.check_one(one)
        for point, writes in allowed.kept_writes:
            if point.place == place_of(one):
                assert set(map(repr, writes)) <= set(map(repr, one.pending_writes))


# Only a listing of all threads looks for a thread's name.
@pytest.mark.parametrize(("name", "thread"), [*((name, "thread") for name in READS), ("list all threads", LONG)])
def test_read_and_delete(name: str, thread: str) -> None:
    """A read beside a deletion sees a checkpoint whole or not at all; never an error, never half of it."""
    points = moved(thread, *(CHAIN if "history" in name else (A, B)))
    allowed = archive(kept=points)

    def end(world: World) -> None:
        assert errors_of(world) == {}
        check_read(name, world, allowed)

    make = world_of(*points, start={"read": lambda saver: READS[name](saver, thread), "delete": deletes(thread)})
    COUNTS[f"read {name} and delete"] += explore(make, end=end)


@each_read
def test_read_and_put(name: str) -> None:
    """A read beside a put sees the new checkpoint whole or not at all, and what was there before in any case."""
    points, point = (CHAIN[:2], CHAIN[2]) if "history" in name else ((A, B), D)
    allowed = archive(point, kept=points)

    def end(world: World) -> None:
        assert errors_of(world) == {}
        check_read(name, world, allowed)
        result = world.running["read"].result
        if name.startswith("list"):
            assert {place_of(one) for one in result} >= {one.place for one in points}
        assert result is not None

    make = world_of(*points, start={"read": lambda saver: READS[name](saver, "thread"), "put": point.put})
    run(f"read {name} and put", make, allowed, end)


def test_read_of_an_old_format_and_delete() -> None:
    """A checkpoint of a format below 4 is read with the sends on its parent, or not at all.

    Only while a deletion removes one checkpoint after another may a child outlive its parent, and its sends.
    """
    parent = Point("1", values={"messages": ["a"]}, v=3)
    child = parent.child("2")
    sends = ["send 1", "send 2"]
    stored = MemoryBucket()
    saver = process(stored)
    parent.store(saver)
    store_writes(saver, parent, "task", [(TASKS, send) for send in sends])
    child.store(saver)

    def make() -> World:
        world = World(copy_of(stored))
        world.start("read", world.saver()._get_tuple(child.config))
        world.start("delete", world.saver()._delete_thread("thread"))
        return world

    def end(world: World) -> None:
        assert errors_of(world) == {}
        found = world.running["read"].result
        if found is not None and found.checkpoint["channel_values"].get(TASKS) != sends:
            trace = [(step.place[0], type(step.request).__name__, LAYOUT.kind(step.key)) for step in world.trace]
            last_read = max(number for number, step in enumerate(trace) if step[0] == "read")
            assert trace[:last_read].count(("delete", "Delete", "checkpoint")) == 1

    COUNTS["read of an old format and delete"] += explore(make, end=end)


@pytest.mark.parametrize("name", ["newest", "list all threads", "history of the newest"])
def test_many_at_once(name: str) -> None:
    """Two puts, writes, a deletion and a read in one thread, in random orders."""
    points = CHAIN if "history" in name else (A, B, SUB)
    one, two = replace(D, id="5", parent="2"), replace(E, id="6", parent="2", run="run 3")
    allowed = archive(*points, one, two)
    allowed.writes[one.place].append(writes_of("task 2", MORE))
    start = {
        "put": begun(one.put, True),
        "other put": two.put,
        "writes": partial(put_writes, point=one, task="task 2", writes=MORE),
        "delete": deletes(),
        "read": lambda saver: READS[name](saver, "thread"),
    }

    def end(world: World) -> None:
        assert errors_of(world) == {}
        allowed.check(world.bucket)
        if not name.startswith("history"):
            check_read(name, world, allowed)
        deleted(world)

    COUNTS[f"many at once, {name}"] += sample(world_of(*points, start=start, remembers="put"), range(100), end=end)
