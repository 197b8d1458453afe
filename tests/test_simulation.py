"""One operation attacked: stopped at each of its requests, each answer lost, each request failing. And the machinery.

How many schedules a test ran is printed with `pytest -s`.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from memory_saver import MemorySaver
from points import LONG, MORE, SUB, A, B, C, D, E, archive, deletes, filled, moved
from reading import Point, content, keys_of, put_writes, writes_of
from simulation import COUNTS, Case, Make, World, crashes, explore, failures, losses, process, sample

from s3_saver.bucket import Delete, Get, List, Operation, Put, both
from s3_saver.drivers.memory import MemoryBucket
from s3_saver.errors import CorruptObjectError


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    """Prints how many schedules a test ran."""
    COUNTS.clear()
    yield
    for name, count in COUNTS.items():
        print(f"{count:6} schedules: {name}")


# One operation: crashes, lost answers, failures


def case_of(name: str, before: tuple[Point, ...], act: Callable[[MemorySaver], Operation[Any]], **how: Any) -> Case:
    """A case where `before` is stored, and `act` runs in another process, or in one that remembers storing it."""
    stored = MemoryBucket()
    filled(stored, *before)

    def fill(bucket: MemoryBucket) -> MemorySaver:
        if how.get("remembers"):
            return filled(bucket, *before)
        bucket.objects.update(stored.objects)
        return process(bucket)

    return Case(name, fill, act, how["allowed"].sound, how.get("content", content))


def putting(name: str, before: tuple[Point, ...], point: Point, *, remembers: bool = False) -> Case:
    allowed = archive(point, kept=before)
    return case_of(
        name,
        before,
        point.put,
        allowed=allowed,
        remembers=remembers,
        content=lambda bucket: content(bucket, [point.thread]),
    )


def writing(name: str, point: Point) -> Case:
    allowed = archive(kept=(A, B))
    allowed.writes.setdefault(point.place, []).append(writes_of("task 2", MORE))

    def seen(bucket: MemoryBucket) -> Any:
        # A repeated call leaves a second batch with the same writes.
        return content(bucket), {key.rpartition("/")[0] for key in keys_of(bucket, "writes")}

    act = partial(put_writes, point=point, task="task 2", writes=MORE)
    return case_of(name, (A, B), act, allowed=allowed, content=seen)


def deleting(name: str, *points: Point) -> Case:
    def left(bucket: MemoryBucket) -> list[str]:
        return sorted(bucket.objects)

    return case_of(name, points, deletes(points[0].thread), allowed=archive(*points), content=left)


CASES = {
    case.name: case
    for case in (
        putting("put of a small checkpoint", (), Point("1", values={"messages": ["a"]})),
        putting("put, parent in memory", (A, B), C, remembers=True),
        putting("put, parent read", (A, B), C),
        putting("put of a large value", (A, B), D),
        putting("put of two large values", (A, B), E),
        putting("put in a new run", (A, B), replace(C, run="run 2")),
        putting("put of a new thread with a long name", (), *moved(LONG, A)),
        putting("put in a thread with a long name", moved(LONG, A, B), *moved(LONG, D)),
        putting("put of a subgraph's first", (A,), SUB),
        writing("put_writes", B),
        writing("put_writes before the checkpoint", C),
        deleting("delete_thread", A, B, SUB),
        deleting("delete_thread with large values", A, B, D),
        deleting("delete_thread with a long name", *moved(LONG, A, B)),
        case_of("setup", (A,), lambda saver: saver._setup(True), allowed=archive(kept=(A,))),
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


# The machinery


async def _put_then_look(key: str) -> list[str]:
    await Put(key, key.encode())
    page, found = await both(List(""), Get("common"))
    return [*(item.key for item in page.keys), str(found)]


async def _delete(*keys: str) -> None:
    await Delete(keys)


def _tiny(*, every_order: bool = False) -> World:
    world = World(MemoryBucket(objects={"c": (b"c", 0), "common": (b"c", 0)}), shared_memory=every_order)
    for name, operation in {
        "a": _put_then_look("a"),
        "b": _put_then_look("common"),
        "x": _delete("c", "common"),
    }.items():
        world.start(name, operation)
    return world


def test_explore_leaves_out_nothing_that_can_be_told_apart() -> None:
    """Every state of the bucket and every outcome that any order leads to is among those explored."""

    def explored(make: Make) -> tuple[int, set[Any], set[Any]]:
        states: set[Any] = set()
        outcomes: set[Any] = set()

        def end(world: World) -> None:
            outcomes.add((objects(world), tuple(str(running.result) for running in world.running.values())))

        return explore(make, node=lambda world: states.add(objects(world)), end=end), states, outcomes

    def objects(world: World) -> Any:
        return tuple(sorted((key, body) for key, (body, _) in world.bucket.objects.items()))

    some, states, outcomes = explored(_tiny)
    every, all_states, all_outcomes = explored(partial(_tiny, every_order=True))
    # 560 orders of three operations' steps, where three rounds have two requests each in two orders.
    assert every == 560 * 2**3
    assert some < every / 5
    assert (states, outcomes) == (all_states, all_outcomes)


def test_a_failing_check_tells_the_steps() -> None:
    """The note on an error lists what was done up to it, and the seed where there was one."""

    def check(world: World) -> None:
        assert len(world.trace) < 3

    with pytest.raises(AssertionError) as raised:
        explore(_tiny, node=check)
    assert raised.value.__notes__[0].splitlines()[1:] == ["  1. a: Put a", "  2. a: List", "  3. a: Get common"]
    with pytest.raises(AssertionError) as raised:
        sample(_tiny, range(3), node=check)
    assert "seed 0" in raised.value.__notes__[0]


def test_attacks_find_a_wrong_order() -> None:
    """An operation that makes its result visible before what it needs does not pass."""

    def act(saver: MemorySaver) -> Operation[Any]:
        async def wrong() -> None:
            await Put(head, whole[head])
            await Put(value, whole[value])

        return wrong()

    stored = MemoryBucket()
    filled(stored, replace(A, run=None))
    whole = {key: body for key, (body, _) in stored.objects.items()}
    (head,), (value,) = keys_of(stored, "checkpoint"), keys_of(stored, "value")
    case = Case("wrong", process, act, archive(A, replace(A, run=None)).sound, content)
    with pytest.raises(CorruptObjectError):
        crashes(case)
