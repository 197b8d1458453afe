"""Every order of requests, a crash at each, an answer lost after each put, each request failing: nothing is lost, and
nothing is seen by halves.

Each test says how many schedules it ran; `pytest -s tests/test_simulation.py` prints them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from memory_saver import MemorySaver
from reading import (
    LAYOUT,
    Archive,
    Point,
    config_of,
    content,
    keys_of,
    listed,
    place_of,
    put_writes,
    same,
    store_writes,
    writes_of,
)
from simulation import COUNTS, Case, Make, World, crashes, explore, failures, losses, process

from s3_saver.bucket import Operation
from s3_saver.drivers.memory import MemoryBucket
from s3_saver.errors import CheckpointConflictError

BIG = "large " * 40
BIGGER = "larger " * 40
LONG = "thread with a long name " * 12

A = Point("1", values={"messages": ["a"], "document": BIG, "log": ["seed"]}, run="run 1")
# The child stores no `log`: that channel is rebuilt from the writes of its ancestors.
B = A.child("2", values={"messages": ["a"], "document": BIG}, versions={"messages": 1, "document": 1, "log": 2})
C = B.child("3", values={"messages": ["a", "c"], "document": BIG}, versions={"messages": 3, "document": 1, "log": 2})
C = replace(C, new=("messages",))
SUB = Point("1", values={"messages": ["sub"]}, ns="sub", run="run 1")
WRITES = [("log", "w1"), ("messages", "m")]
MORE = [("log", "w2")]


@pytest.fixture(autouse=True)
def counted(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Prints how many schedules a test ran."""
    COUNTS.clear()
    yield
    for name, count in COUNTS.items():
        print(f"{count:6} schedules: {name}")


def moved(thread: str, *points: Point) -> list[Point]:
    return [replace(point, thread=thread) for point in points]


def filled(bucket: MemoryBucket, *points: Point) -> MemorySaver:
    """A thread with A and its writes, and `points`. The saver that stored them."""
    saver = process(bucket)
    for point in points:
        point.store(saver)
        if point.id == A.id and not point.ns:
            store_writes(saver, point, "task 1", WRITES)
    return saver


def archive(*points: Point, kept: tuple[Point, ...] = ()) -> Archive:
    """What may be seen of `points`, where `kept` were acknowledged before."""
    found = Archive(points=[*kept, *points], kept=list(kept))
    for point in found.points:
        if point.id == A.id and not point.ns:
            found.writes[point.place] = [writes_of("task 1", WRITES)]
            found.kept_writes = [(kept_one, writes_of("task 1", WRITES)) for kept_one in kept if kept_one == point]
    return found


# One operation: crashes, lost answers, failures


def _putting(name: str, before: tuple[Point, ...], point: Point, *, remembers: bool = False) -> Case:
    allowed = archive(point, kept=before)
    threads = {one.thread for one in allowed.points}

    def fill(bucket: MemoryBucket) -> MemorySaver:
        saver = filled(bucket, *before)
        return saver if remembers else process(bucket)

    return Case(name, fill, point.put, lambda bucket: _sound(allowed, bucket), lambda bucket: content(bucket, threads))


def _sound(allowed: Archive, bucket: MemoryBucket) -> None:
    allowed.check(bucket)


def _writing(name: str, before: tuple[Point, ...], point: Point) -> Case:
    allowed = archive(kept=before)
    allowed.writes.setdefault(point.place, []).append(writes_of("task 2", MORE))

    def fill(bucket: MemoryBucket) -> MemorySaver:
        filled(bucket, *before)
        return process(bucket)

    return Case(
        name,
        fill,
        lambda saver: put_writes(saver, point, "task 2", MORE),
        lambda bucket: _sound(allowed, bucket),
        lambda bucket: (content(bucket), len({key.rpartition("/")[0] for key in keys_of(bucket, "writes")})),
    )


def _deleting(name: str, points: tuple[Point, ...]) -> Case:
    thread = points[0].thread
    allowed = archive(*points)

    def fill(bucket: MemoryBucket) -> MemorySaver:
        filled(bucket, *points)
        return process(bucket)

    return Case(
        name,
        fill,
        lambda saver: saver._delete_thread(thread),
        lambda bucket: _sound(allowed, bucket),
        lambda bucket: sorted(bucket.objects),
    )


def _setting_up() -> Case:
    allowed = archive(A, kept=(A,))

    def fill(bucket: MemoryBucket) -> MemorySaver:
        filled(bucket, A)
        return process(bucket)

    return Case("setup", fill, lambda saver: saver._setup(True), lambda bucket: _sound(allowed, bucket), content)


D = replace(C, values={"messages": ["a"], "document": BIGGER}, versions={"messages": 1, "document": 3, "log": 2})
D = replace(D, new=("document",))
E = replace(D, values={"messages": BIG, "document": BIGGER}, versions={"messages": 3, "document": 3, "log": 2})
E = replace(E, new=("document", "messages"))

CASES = {
    case.name: case
    for case in (
        _putting("put of a small checkpoint", (), Point("1", values={"messages": ["a"]})),
        _putting("put, parent in memory", (A, B), C, remembers=True),
        _putting("put, parent read", (A, B), C),
        _putting("put of a large value", (A, B), D),
        _putting("put of two large values", (A, B), E),
        _putting("put in a new run", (A, B), replace(C, run="run 2")),
        _putting("put of a new thread with a long name", (), *moved(LONG, A)),
        _putting("put in a thread with a long name", tuple(moved(LONG, A, B)), *moved(LONG, D)),
        _putting("put of a subgraph's first", (A,), SUB),
        _writing("put_writes", (A, B), B),
        _writing("put_writes before the checkpoint", (A, B), C),
        _deleting("delete_thread", (A, B, SUB)),
        _deleting("delete_thread with large values", (A, B, D)),
        _deleting("delete_thread with a long name", tuple(moved(LONG, A, B))),
        _setting_up(),
    )
}
each_case = pytest.mark.parametrize("name", CASES)


@each_case
def test_crash(name: str) -> None:
    """Stopped before or after any step, what is visible is whole, and a rerun completes the work."""
    assert crashes(CASES[name]) > 1


@each_case
def test_lost_answer(name: str) -> None:
    """A put that is repeated because its answer got lost succeeds: no conflict, and one checkpoint."""
    assert losses(CASES[name]) >= 1


@each_case
def test_failed_request(name: str) -> None:
    """The call raises what the store answers, leaves nothing half-visible, and succeeds when repeated."""
    assert failures(CASES[name]) >= 2


# Several operations at once


def world_of(*points: Point, start: Callable[[World], None], thread: str | None = None) -> Make:
    """Worlds in which `points` are stored and the operations that `start` starts are under way."""

    def make() -> World:
        world = World()
        filled(world.bucket, *points)
        start(world)
        return world

    return make


def run(name: str, make: Make, **checks: Any) -> int:
    count = explore(make, **checks)
    COUNTS[name] += count
    return count


def errors_of(world: World) -> dict[str, Exception]:
    return {name: running.error for name, running in world.running.items() if running.error is not None}


PUT_TWICE = {
    "small": (Point("1", values={"messages": ["a"]}), Point("1", values={"messages": ["b"]})),
    "small child": (C, replace(C, values={"messages": ["other"], "document": BIG})),
    "large": (D, replace(D, values={"messages": ["a"], "document": "other " * 60})),
    "large against small": (D, replace(D, values={"messages": ["a"], "document": "other"})),
    "new run": (replace(C, run="run 2"), replace(C, run="run 3")),
    "with a value and without": (
        A,
        replace(A, values={"messages": ["a"], "log": ["seed"]}, versions=A.checkpoint["channel_versions"]),
    ),
    "other parent": (C, replace(C, parent="1", versions={"messages": 3, "document": 1, "log": 2})),
}


@pytest.mark.parametrize("name", PUT_TWICE)
def test_two_puts_of_the_same(name: str) -> None:
    """Two processes put one checkpoint with the same content: both succeed, and there is one."""
    point, _ = PUT_TWICE[name]
    before = [one for one in (A, B) if point.parent is not None]
    allowed = archive(point, kept=tuple(before))

    def start(world: World) -> None:
        for process_name in ("one", "two"):
            world.start(process_name, point.put(world.saver()))

    def end(world: World) -> None:
        assert errors_of(world) == {}
        assert point.place in allowed.check(world.bucket)

    count = run(
        f"two puts of the same, {name}",
        world_of(*before, start=start),
        node=lambda w: _sound(allowed, w.bucket),
        end=end,
    )
    assert count >= 2


@pytest.mark.parametrize("name", PUT_TWICE)
def test_two_puts_that_differ(name: str) -> None:
    """Two processes put one id with different content: one succeeds, the other learns of the conflict."""
    points = dict(zip(("one", "two"), PUT_TWICE[name], strict=True))
    before = [one for one in (A, B) if points["one"].parent is not None]
    allowed = archive(*points.values(), kept=tuple(before))
    winners = set()

    def start(world: World) -> None:
        for process_name, point in points.items():
            world.start(process_name, point.put(world.saver()))

    def end(world: World) -> None:
        (loser,) = errors_of(world)
        assert isinstance(world.running[loser].error, CheckpointConflictError)
        (winner,) = points.keys() - {loser}
        winners.add(winner)
        point = points[winner]
        assert same(allowed.check(world.bucket)[point.place], point)

    run(
        f"two puts that differ, {name}",
        world_of(*before, start=start),
        node=lambda w: _sound(allowed, w.bucket),
        end=end,
    )
    assert winners == {"one", "two"}


def test_put_of_parent_and_child() -> None:
    """A child that is put while its parent is stands on its own values where the parent is not there yet."""
    points = {"parent": D, "child": replace(D, id="4", parent="3", new=())}
    allowed = archive(*points.values(), kept=(A, B))

    def start(world: World) -> None:
        for process_name, point in points.items():
            world.start(process_name, point.put(world.saver()))

    def end(world: World) -> None:
        assert errors_of(world) == {}
        assert len(allowed.check(world.bucket)) == 4

    run("put of parent and child", world_of(A, B, start=start), node=lambda w: _sound(allowed, w.bucket), end=end)


def test_put_and_its_writes() -> None:
    """Writes come before or after their checkpoint, and are there with it."""
    allowed = archive(D, kept=(A, B))
    allowed.writes[D.place] = [writes_of("task 2", MORE), writes_of("task 3", MORE)]

    def start(world: World) -> None:
        world.start("put", D.put(world.saver()))
        world.start("writes", put_writes(world.saver(), D, "task 2", MORE))
        world.start("more", put_writes(world.saver(), D, "task 3", MORE))

    def end(world: World) -> None:
        assert errors_of(world) == {}
        found = allowed.check(world.bucket)[D.place]
        assert found.pending_writes == [*writes_of("task 2", MORE), *writes_of("task 3", MORE)]

    run("put and its writes", world_of(A, B, start=start), node=lambda w: _sound(allowed, w.bucket), end=end)


def test_two_put_writes_of_the_same_task() -> None:
    """Of two writes with one (task, idx) one stands, for every reader and for ever once both are stored."""
    allowed = archive(kept=(A, B))
    both_writes = [writes_of("task", [("log", name)]) for name in ("one", "two")]
    allowed.writes[B.place] = both_writes

    def start(world: World) -> None:
        world.start("one", put_writes(world.saver(), B, "task", [("log", "one")]))
        world.start("two", put_writes(world.saver(), B, "task", [("log", "two")]))

    def end(world: World) -> None:
        found = [process(world.bucket).get_tuple(B.config) for _ in range(2)]
        assert all(one is not None and one.pending_writes == list(both_writes[0]) for one in found)

    run("two put_writes of one task", world_of(A, B, start=start), node=lambda w: _sound(allowed, w.bucket), end=end)


# Deletion beside other operations


def deleted(world: World, thread: str = "thread") -> None:
    """Asserts that one more deletion leaves the tombstone alone."""
    saver = world.saver()
    saver.delete_thread(thread)
    folder = LAYOUT.thread(thread)
    assert [key for key in world.bucket.objects if key.startswith(folder)] == [LAYOUT.deleted(thread)]


def _deletion(*others: Callable[[World], None], thread: str = "thread") -> Callable[[World], None]:
    def start(world: World) -> None:
        world.start("delete", world.saver()._delete_thread(thread))
        for other in others:
            other(world)

    return start


PUT_AND_DELETE = {
    "small": ((A,), C, False),
    "small, in memory": ((A, B), C, True),
    "large": ((A, B), D, False),
    "large, in memory": ((A, B), D, True),
    "new run": ((A, B), replace(C, run="run 2"), True),
    "long name": (tuple(moved(LONG, A)), moved(LONG, replace(C, parent="1"))[0], True),
    "long name, new lineage": (tuple(moved(LONG, B)), moved(LONG, A)[0], False),
    "first of the thread": ((), A, False),
}


@pytest.mark.parametrize("name", PUT_AND_DELETE)
def test_put_and_delete(name: str) -> None:
    """Whatever a put leaves in a thread that is being deleted reads whole or as deleted, and the next deletion ends it."""
    before, point, remembers = PUT_AND_DELETE[name]
    allowed = archive(*before, point)

    def make() -> World:
        world = World()
        saver = filled(world.bucket, *before)
        world.start("put", point.put(saver if remembers else world.saver()))
        world.start("delete", world.saver()._delete_thread(point.thread))
        return world

    def end(world: World) -> None:
        assert errors_of(world) == {}
        allowed.check(world.bucket)
        deleted(world, point.thread)

    run(f"put and delete, {name}", make, node=lambda w: _sound(allowed, w.bucket), end=end)


def test_put_writes_and_delete() -> None:
    """Writes that arrive in a thread that is being deleted are not seen, and the next deletion removes them."""
    allowed = archive(A, B)
    allowed.writes[B.place] = [writes_of("task 2", MORE)]

    def end(world: World) -> None:
        assert errors_of(world) == {}
        deleted(world)

    start = _deletion(lambda world: void(world.start("writes", put_writes(world.saver(), B, "task 2", MORE))))
    run("put_writes and delete", world_of(A, B, start=start), node=lambda w: _sound(allowed, w.bucket), end=end)


def test_two_deletes() -> None:
    """Two deletions of one thread both succeed and leave nothing but the tombstone."""
    allowed = archive(A, B)

    def end(world: World) -> None:
        assert errors_of(world) == {}
        assert list(world.bucket.objects) == [LAYOUT.deleted("thread")]

    start = _deletion(lambda world: void(world.start("again", world.saver()._delete_thread("thread"))))
    run("two deletes", world_of(A, start=start), node=lambda w: _sound(allowed, w.bucket), end=end)


def void(_: Any) -> None:
    pass


# Readers beside writers

Read = Callable[[MemorySaver], Operation[Any]]

READS: dict[str, Read] = {
    "newest": lambda saver: saver._get_tuple(config_of("thread")),
    "by id": lambda saver: saver._get_tuple(B.config),
    "by id, with writes": lambda saver: saver._get_tuple(A.config),
    "list": lambda saver: listed(saver, config_of("thread")),
    "list all namespaces": lambda saver: listed(saver, config_of("thread", None)),
    "list all threads": lambda saver: listed(saver, None),
    "list with a filter": lambda saver: listed(saver, config_of("thread"), filter={"step": 1}),
    "history": lambda saver: saver._delta_history(B.config, ["log"]),
    "history of the newest": lambda saver: saver._delta_history(config_of("thread"), ["log"]),
}
each_read = pytest.mark.parametrize("name", READS)


def whole(result: Any, allowed: Archive) -> None:
    """Asserts that what a read returned is whole: nothing, or a checkpoint with all its writes."""
    found = result if isinstance(result, list) else [] if result is None else [result]
    for one in found:
        allowed.check_one(one)
        for point, writes in allowed.kept_writes:
            if point.place == place_of(one):
                assert set(map(repr, writes)) <= set(map(repr, one.pending_writes))


@each_read
@pytest.mark.parametrize("name_of_thread", ["thread", LONG], ids=["short", "long"])
def test_read_and_delete(name: str, name_of_thread: str) -> None:
    """A read beside a deletion sees a checkpoint whole or not at all; never an error, never half of it."""
    points = moved(name_of_thread, A, B)
    allowed = archive(kept=tuple(points))
    complete = {"writes": [("task 1", "log", "w1")], "seed": ["seed"]}

    def start(world: World) -> None:
        reader = world.saver()
        with_name = _RenamedReader(reader, name_of_thread)
        world.start("read", READS[name](with_name))  # type: ignore[arg-type]
        world.start("delete", world.saver()._delete_thread(name_of_thread))

    def end(world: World) -> None:
        assert errors_of(world) == {}
        result = world.running["read"].result
        if name.startswith("history"):
            assert result["log"] in (complete, {"writes": []})
        else:
            whole(result, allowed)

    run(f"read {name} and delete", world_of(*points, start=start), end=end)


class _RenamedReader:
    """Calls a saver's operations for another thread."""

    def __init__(self, saver: MemorySaver, thread: str) -> None:
        self.saver, self.thread = saver, thread

    def _renamed(self, config: Any) -> Any:
        return config and {"configurable": config["configurable"] | {"thread_id": self.thread}}

    def _get_tuple(self, config: Any) -> Any:
        return self.saver._get_tuple(self._renamed(config))

    def _delta_history(self, config: Any, channels: Any) -> Any:
        return self.saver._delta_history(self._renamed(config), channels)

    def _listing(self, config: Any, filter: Any, before: Any) -> Any:
        return self.saver._listing(self._renamed(config), filter, before)

    def _page(self, listing: Any, left: Any) -> Any:
        return self.saver._page(listing, left)
