"""The grace rule: a writer refers to value objects only while nobody may have swept them, whatever clocks do.

Value objects outlive their last reference by an hour. A put that comes more than half an hour after its parent was
loaded reads the parent again, and where that is gone it stores what it needs anew.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from memory_saver import MemorySaver
from points import BIG, BIGGER, A, B, C, D, archive, filled
from reading import Archive, Point, keys_of, same
from simulation import COUNTS, World, process

from s3_saver.bucket import Get, Instant, Put
from s3_saver.drivers.memory import MemoryBucket
from s3_saver.errors import CheckpointConflictError

MINUTE_MS = 60_000
HALF_AN_HOUR_MS = 30 * MINUTE_MS


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    """Prints how many schedules a test ran."""
    COUNTS.clear()
    yield
    for name, count in COUNTS.items():
        print(f"{count:6} schedules: {name}")


@dataclass
class Sleeper(MemoryBucket):
    """A bucket whose clients' monotonic clock stood still for `asleep_ms`, and whose wall clock was set by `set_ms`."""

    asleep_ms: int = 0
    set_ms: int = 0

    def now(self) -> Instant:
        return Instant(
            (self.clock_ms - self.asleep_ms) / 1000, self.clock_ms / 1000, (self.clock_ms + self.set_ms) / 1000
        )


def kinds(saver: MemorySaver) -> list[type[Any]]:
    """The requests since the last call, each of which was a round."""
    found = [type(request) for round_ in saver.driver.rounds for request in round_]
    saver.driver.rounds.clear()
    return found


def stored(point: Point, bucket: MemoryBucket) -> None:
    """Asserts that a process which remembers nothing reads `point`."""
    found = process(bucket).get_tuple(point.config)
    assert found is not None
    assert same(found, point)


def removed(bucket: MemoryBucket, point: Point, *, values: bool = False) -> None:
    """Removes a checkpoint, as a prune does, and all value objects, as a sweep may an hour later."""
    for key in keys_of(bucket, "checkpoint", *(["value"] if values else [])):
        if LAST[point.id] in key or key.endswith(".bin"):
            del bucket.objects[key]


LAST = {point.id: f".{point.id}/" for point in (A, B)}


# When a parent is read again


@pytest.mark.parametrize("age_ms", [0, 10 * MINUTE_MS, HALF_AN_HOUR_MS])
def test_a_young_parent_is_referred_to(age_ms: int) -> None:
    """Up to half an hour after its load, an unchanged large value costs neither a read nor a byte."""
    bucket = MemoryBucket()
    saver = filled(bucket, A, B)
    kinds(saver)
    bucket.clock_ms += age_ms
    C.store(saver)
    assert kinds(saver) == [Put]
    assert len(keys_of(bucket, "value")) == 1
    stored(C, bucket)


def test_an_old_parent_is_read_again() -> None:
    """After half an hour the parent is read once, and that counts as a load."""
    bucket = MemoryBucket()
    saver = filled(bucket, A, B)
    kinds(saver)
    bucket.clock_ms += HALF_AN_HOUR_MS + 1
    C.store(saver)
    assert kinds(saver) == [Get, Put]
    bucket.clock_ms += HALF_AN_HOUR_MS
    replace(C, id="4").store(saver)
    assert kinds(saver) == [Put]
    assert len(keys_of(bucket, "value")) == 1


def test_a_put_is_a_load_of_what_it_puts() -> None:
    """A chain of puts, each within half an hour of the one before, reads no parent."""
    bucket = MemoryBucket()
    saver = filled(bucket, A)
    kinds(saver)
    point = A
    for number in range(2, 8):
        bucket.clock_ms += 29 * MINUTE_MS
        point = point.child(str(number))
        point.store(saver)
    assert kinds(saver) == [Put] * 6
    stored(point, bucket)


def test_a_small_parent_is_never_read_again() -> None:
    """Without large values there is nothing to refer to: a parent in memory serves for ever."""
    bucket = MemoryBucket()
    small = Point("1", values={"messages": ["a"]})
    saver = filled(bucket, small)
    kinds(saver)
    bucket.clock_ms += 1_000 * HALF_AN_HOUR_MS
    small.child("2").store(saver)
    assert kinds(saver) == [Put]


@pytest.mark.parametrize(
    ("asleep_ms", "set_ms"),
    [(HALF_AN_HOUR_MS, 0), (0, -100 * HALF_AN_HOUR_MS), (HALF_AN_HOUR_MS, -100 * HALF_AN_HOUR_MS)],
    ids=["suspended", "set back", "both"],
)
def test_no_clock_alone_can_make_a_parent_young(asleep_ms: int, set_ms: int) -> None:
    """A suspended machine stops one clock, an operator sets another: the one that saw most time counts."""
    bucket = Sleeper()
    saver = filled(bucket, A, B)
    kinds(saver)
    bucket.clock_ms += HALF_AN_HOUR_MS + 1
    bucket.asleep_ms, bucket.set_ms = asleep_ms, set_ms
    C.store(saver)
    assert kinds(saver) == [Get, Put]


# When the parent is gone


def test_values_of_a_lost_parent_are_stored_anew() -> None:
    """Where its value objects are still there they are read; they may be swept as soon as the put has ended."""
    bucket = MemoryBucket()
    saver = filled(bucket, A, B)
    bucket.clock_ms += HALF_AN_HOUR_MS + 1
    removed(bucket, B)
    old = set(keys_of(bucket, "value"))
    # What the caller holds by now is not what the parent has: the archive's own bytes count.
    replace(C, values={"messages": ["c"], "document": "changed since " * 20}).store(saver)
    for key in old:
        del bucket.objects[key]
    stored(C, bucket)


def test_what_is_swept_is_taken_from_the_caller() -> None:
    """Inline values come from memory, large ones from the caller where nothing else is left."""
    bucket = MemoryBucket()
    saver = filled(bucket, A, B)
    bucket.clock_ms += 10 * HALF_AN_HOUR_MS
    removed(bucket, B, values=True)
    replace(D, values={"messages": ["changed since"], "document": BIGGER}).store(saver)
    stored(D, bucket)
    E = B.child("5")
    replace(E, values={"messages": ["changed since"], "document": BIG}).store(saver)
    stored(E, bucket)


def test_another_checkpoint_in_the_parents_place_is_no_parent() -> None:
    """Where the parent's id has other content by now, what we knew of the parent counts."""
    bucket = MemoryBucket()
    saver = filled(bucket, A, B)
    bucket.clock_ms += HALF_AN_HOUR_MS + 1
    removed(bucket, B)
    Point("2", values={"other": 1}).store(process(bucket))
    C.store(saver)
    stored(C, bucket)


# Late: time passes while a put is under way


def late(point: Point, *, before: int, repeated: bool, meanwhile: Any) -> tuple[World, Any]:
    """A put whose checkpoint is late: more than half an hour passes before its step number `before` is carried out.

    With `repeated` that step is carried out in time but its answer gets lost, and the client repeats it too late.
    """
    world = World()
    saver = filled(world.bucket, A, B)
    running = world.start("put", point.put(saver))

    def time_passes() -> None:
        world.bucket.clock_ms += HALF_AN_HOUR_MS + 1
        meanwhile(world.bucket)

    for number in range(100):
        if not world.steps():
            break
        if number == before and not repeated:
            time_passes()
        world.carry_out(world.steps()[0], lost=time_passes if number == before and repeated else None)
    if running.error is not None:
        raise running.error
    return world, running


def nothing(bucket: MemoryBucket) -> None:
    pass


def parent_goes(bucket: MemoryBucket) -> None:
    removed(bucket, B)


def all_goes(bucket: MemoryBucket) -> None:
    """The parent and its value are gone; what the put itself has stored is still young."""
    removed(bucket, B)
    for key in keys_of(bucket, "value")[:]:
        if bucket.objects[key][1] < bucket.clock_ms - 2 * HALF_AN_HOUR_MS:
            del bucket.objects[key]


@pytest.mark.parametrize("meanwhile", [nothing, parent_goes, all_goes])
@pytest.mark.parametrize("repeated", [False, True], ids=["late", "landed, repeated late"])
@pytest.mark.parametrize(("point", "before"), [(C, 0), (D, 1)], ids=["small", "large"])
def test_late(point: Point, before: int, repeated: bool, meanwhile: Any) -> None:
    """A checkpoint that is late is put again, with what is there by now; one that had landed unseen is recognised."""
    world, _ = late(point, before=before, repeated=repeated, meanwhile=meanwhile)
    stored(point, world.bucket)
    assert len([key for key in keys_of(world.bucket, "checkpoint") if ".3/" in key]) == 1


@pytest.mark.parametrize("meanwhile", [nothing, parent_goes])
def test_late_and_in_conflict(meanwhile: Any) -> None:
    """Where another process has put other content under the id meanwhile, that is a conflict all the same."""
    other = Point("3", parent="2", values={"other": 1})

    def both_happen(bucket: MemoryBucket) -> None:
        meanwhile(bucket)
        other.store(process(bucket))

    with pytest.raises(CheckpointConflictError):
        late(C, before=0, repeated=False, meanwhile=both_happen)


def test_late_for_ever() -> None:
    """A put that sleeps half an hour before each of its requests gives up, says so, and has changed nothing visible."""
    bucket = MemoryBucket()
    saver = filled(bucket, A, B)
    world = World(bucket)
    running = world.start("put", D.put(saver))
    while steps := world.steps():
        bucket.clock_ms += HALF_AN_HOUR_MS + 1
        world.carry_out(steps[0])
    assert "no success in 5 attempts" in str(running.error)
    archive(kept=(A, B)).sound(bucket)


# Against prunes

# Forks from A, which a prune removes since a newer checkpoint follows it.
FORK = A.child("5", run=None)
FORKS = {
    "refers to a value": replace(
        FORK,
        values={"messages": ["c"], "document": BIG, "log": ["seed"]},
        versions={"messages": 5, "document": 1, "log": 1},
        new=("messages",),
    ),
    "stores a value": replace(
        FORK,
        values={"messages": ["a"], "document": BIGGER, "log": ["seed"]},
        versions={"messages": 1, "document": 5, "log": 1},
        new=("document",),
    ),
    "does both": replace(
        FORK,
        values={"messages": BIGGER, "document": BIG, "log": ["seed"]},
        versions={"messages": 5, "document": 1, "log": 1},
        new=("messages",),
    ),
}
HEAD = replace(A.child("9", values={"messages": ["head"]}, versions={"messages": 9}), new=("messages",), run=None)


@pytest.mark.parametrize("name", FORKS)
@pytest.mark.parametrize("remembers", [True, False], ids=["parent in memory", "parent read"])
def test_prunes_and_sweeps_lose_nothing(name: str, remembers: bool) -> None:
    """A prune that removes the parent and one that sweeps later, at any two steps of a put, with any sleep between.

    Whatever the put has acknowledged reads whole, until a prune removes it as a whole.
    """
    runs = 0
    for sleep in (0, 31, 61):
        for age in (0, 29):
            for first in range(5):
                for second in range(first, 5):
                    _pruned(FORKS[name], remembers, age, {first: 0, second: sleep})
                    runs += 1
    COUNTS[f"put and prunes, {name}"] += runs


def _pruned(point: Point, remembers: bool, age: int, sleeps: dict[int, int]) -> None:
    """Prunes after a sleep of so many minutes before each step that `sleeps` names, then lets the put end."""
    world = World()
    bucket = world.bucket
    saver = filled(bucket, A, HEAD)
    if not remembers:
        saver = process(bucket)
    bucket.clock_ms += age * MINUTE_MS
    running = world.start("put", point.put(saver))
    pruned = False
    for number in range(10):
        if number in sleeps:
            bucket.clock_ms += sleeps[number] * MINUTE_MS
            pruned = running.ended
            process(bucket).prune(["thread"])
        if world.steps():
            world.carry_out(world.steps()[0])
    assert running.error is None
    seen = Archive(points=[A, HEAD, point], writes=archive(A).writes).check(bucket)
    assert point.place in seen or pruned
