"""Copies, prunes, run deletions and merges attacked step by step, and interleaved with each other and with writers.

How many schedules a test ran is printed with `pytest -s`. Pairs have far more schedules than can be run, so random ones
are, and those of small threads are explored; EVERY_SCHEDULE=1 in the environment samples 25 times as many.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from memory_saver import MemorySaver
from points import BIG, BIGGER, MORE, SUB, A, B, D, Start, archive, deletes, filled, moved
from reading import (
    LAYOUT,
    Archive,
    Point,
    config_of,
    content,
    history_of,
    keys_of,
    listed,
    place_of,
    put_writes,
    store_writes,
    writes_of,
)
from simulation import (
    COUNTS,
    Case,
    Make,
    PagedBucket,
    World,
    copy_of,
    crashes,
    explore,
    failures,
    losses,
    process,
    sample,
)

from manifests.keys import segment_in
from manifests.segments import encode_segment
from s3_saver.bucket import Copy, Delete, Put
from s3_saver.drivers.memory import MemoryBucket
from s3_saver.errors import StoreUnavailableError, ThreadBusyError
from s3_saver.operations.survey import index

EVERY_SCHEDULE = bool(os.environ.get("EVERY_SCHEDULE"))
TIMES = 25 if EVERY_SCHEDULE else 1
HOUR_MS = 3_600_000
MINUTE_MS = 60_000
TARGET = "target"
Place = tuple[str, str, str]


@pytest.fixture(autouse=True)
def counted() -> Iterator[None]:
    """Prints how many schedules a test ran."""
    COUNTS.clear()
    yield
    for name, count in COUNTS.items():
        print(f"{count:6} schedules: {name}")


# A thread with forks, large values and a delta chain: a prune keeps D with B and A1, and the newest of `sub`.
Z = Point("0", values={"messages": ["z"], "document": "old " * 60, "log": ["old"]}, run="run 0")
Y = Z.child("05", values=Z.values | {"log": ["y"]}, versions={"messages": 1, "document": 1, "log": 2})
Y = replace(Y, new=("log",))
A1 = replace(A, parent="05")
F = A1.child("15", values={"messages": ["a"], "document": BIG}, versions={"messages": 1, "document": 1, "log": 2})
SUB_HEAD = replace(SUB.child("2", values={"messages": ["sub 2"]}, versions={"messages": 2}), new=("messages",))
GONE = (Z, Y, F, SUB)
STAY = (A1, B, D, SUB_HEAD)
THREAD = (Z, Y, A1, F, B, D, SUB, SUB_HEAD)

# What is done


def prunes(*threads: str) -> Start:
    return lambda saver: saver._prune(list(threads or ("thread",)), "keep_latest", None, None, False)


def copies(source: str = "thread", target: str = TARGET) -> Start:
    return lambda saver: saver._copy_thread(source, target)


def deletes_runs(*runs: str) -> Start:
    return lambda saver: saver._delete_for_runs(list(runs))


def filters(thread: str = "thread") -> Start:
    return lambda saver: listed(saver, config_of(thread), filter={"step": 1})


def run(bucket: MemoryBucket, start: Start) -> Any:
    """Carries an operation out at once, in a process of its own."""
    saver = process(bucket)
    return saver.driver.run(start(saver))


# What holds


@dataclass
class Life(Archive):
    """What may be seen while threads are copied and pruned: histories are whole, or said to be unavailable."""

    # What must be rebuilt for these wherever they are visible, whatever else is.
    histories: dict[Place, Any] = field(default_factory=dict)

    def _history(self, saver: MemorySaver, found: Any, target: CheckpointTuple, deleted: bool) -> None:
        place = place_of(target)
        visible = history_of(found, target, "log")
        expected = self.histories.get(place, visible)
        copying = f"{LAYOUT.thread(place[0])}_copying" in saver.driver.bucket.objects
        try:
            history = saver.get_delta_channel_history(config=target.config, channels=["log"])["log"]
        except StoreUnavailableError:
            # Only into a gap that a copy will fill.
            assert copying
            assert gap_above(found, target)
            return
        assert history == expected


def gap_above(found: Any, target: CheckpointTuple) -> bool:
    """Whether an ancestor is not visible."""
    parent = target.parent_config
    while parent is not None:
        names = parent["configurable"]
        ancestor = found.get((names["thread_id"], names["checkpoint_ns"], names["checkpoint_id"]))
        if ancestor is None:
            return True
        parent = ancestor.parent_config
    return False


def lay(bucket: MemoryBucket, *points: Point) -> MemorySaver:
    """Stores `points` with their writes. The saver that stored them."""
    saver = filled(bucket, *points)
    for point in points:
        if point.id == F.id:
            store_writes(saver, point, "task 1", MORE)
    return saver


def life(*points: Point, kept: tuple[Point, ...] = (), exact: tuple[Point, ...] = ()) -> Life:
    """What may be seen of `points` where `kept` were acknowledged, and the histories of `exact` are as stored."""
    plain = archive(*points, kept=kept)
    found = Life(plain.points, plain.writes, plain.kept, plain.kept_writes)
    for point in found.points:
        if point.id == F.id:
            found.writes[point.place] = [writes_of("task 1", MORE)]
    if exact:
        saver = lay(MemoryBucket(), *found.points)
        for point in exact:
            history = saver.get_delta_channel_history(config=point.config, channels=["log"])
            found.histories[point.place] = history["log"]
    return found


def needed_values(bucket: MemoryBucket, thread: str) -> set[str]:
    saver = process(bucket)
    found = saver.driver.run(index(LAYOUT, LAYOUT.thread(thread), saver._describer))
    return {name for _, row in found.rows() for name in row.values}


def values_in(bucket: MemoryBucket, thread: str) -> set[str]:
    keys = [key for key in keys_of(bucket, "value") if key.startswith(LAYOUT.thread(thread))]
    return {LAYOUT.parse(key).name for key in keys}


def places(bucket: MemoryBucket, thread: str) -> set[Place]:
    return {place_of(item) for item in process(bucket).list(config_of(thread, None))}


def head_history(bucket: MemoryBucket, thread: str) -> Any:
    """What the newest checkpoint's delta channel is rebuilt from; nothing is where it stores the value."""
    saver = process(bucket)
    head = saver.get_tuple(config_of(thread))
    if head is None or "log" in head.checkpoint["channel_values"]:
        return None
    return saver.get_delta_channel_history(config=head.config, channels=["log"])


def swept(bucket: MemoryBucket, allowed: Archive, *threads: str) -> None:
    """Asserts that a prune beyond the grace period leaves all sound, and nothing that nobody refers to."""
    later = copy_of(bucket)
    later.clock_ms += 2 * HOUR_MS
    for thread in threads or ("thread",):
        before, history = places(later, thread), head_history(later, thread)
        run(later, prunes(thread))
        assert head_history(later, thread) == history
        if places(later, thread) != before:
            # What this prune has removed may be swept an hour later.
            later.clock_ms += 2 * HOUR_MS
            run(later, prunes(thread))
        assert values_in(later, thread) == needed_values(later, thread)
        folder = LAYOUT.thread(thread)
        there = {key.rpartition("/")[0] for key in keys_of(later, "checkpoint")}
        removed = {key.rpartition("/")[0] for key in keys_of(bucket, "checkpoint")} - there
        assert not [
            key for key in keys_of(later, "writes") if key.startswith(folder) and key.rpartition("/")[0] in removed
        ]
    # Only what a head needs has a whole history now.
    Life(allowed.points, allowed.writes).check(later)


# One operation: crashes, lost answers, failures


def state_of(bucket: MemoryBucket) -> frozenset[str]:
    return frozenset(key for key in bucket.objects if LAYOUT.kind(key) not in ("removal", "probe"))


def case_of(
    name: str, before: Callable[[MemoryBucket], Any], start: Start, allowed: Archive, *threads: str, age_ms: int = 0
) -> Case:
    stored = MemoryBucket()
    before(stored)
    stored.clock_ms += age_ms

    def fill(bucket: MemoryBucket) -> MemorySaver:
        bucket.objects.update(stored.objects)
        bucket.clock_ms = stored.clock_ms
        return process(bucket)

    # What is stored under one key is always the same here; what was looked at need not be looked at again.
    seen: set[Any] = set()

    def sound(bucket: MemoryBucket) -> None:
        state = state_of(bucket)
        if state not in seen:
            allowed.sound(bucket)
            seen.add(state)

    def finished(bucket: MemoryBucket) -> Any:
        if ("swept", state_of(bucket)) in seen:
            return content(bucket, threads or ("thread",))
        at_end = copy_of(bucket)
        if any(key.endswith("/_copying") for key in at_end.objects):
            # A dead process's mark came after all: the next copy ends it.
            run(at_end, start)
        swept(at_end, allowed, *threads)
        seen.add(("swept", state_of(bucket)))
        return content(bucket, threads or ("thread",))

    return Case(name, fill, start, sound, finished)


def copied(name: str, age_ms: int = 0) -> Case:
    points = (A, B, D, SUB)
    targets = moved(TARGET, *points)
    allowed = life(*targets, kept=points, exact=(*points, *targets))
    return case_of(name, lambda bucket: lay(bucket, *points), copies(), allowed, "thread", TARGET, age_ms=age_ms)


def pruned(name: str, age_ms: int) -> Case:
    allowed = life(*GONE, kept=STAY, exact=(B, D))
    return case_of(name, lambda bucket: lay(bucket, *THREAD), prunes(), allowed, age_ms=age_ms)


RUN_2 = replace(D, run="run 2")


def runs_deleted(name: str, age_ms: int) -> Case:
    kept = (A, B, *moved("other", A, B))
    gone = (RUN_2, replace(SUB, run="run 2"), *moved("other", RUN_2))
    allowed = life(*gone, kept=kept, exact=(A, B))
    return case_of(
        name,
        lambda bucket: lay(bucket, *kept, *gone),
        deletes_runs("run 2"),
        allowed,
        "thread",
        "other",
        age_ms=age_ms,
    )


def segmented(bucket: MemoryBucket, *points: Point) -> None:
    """Stores `points` and a segment for each."""
    saver = lay(bucket, *points)
    found = saver.driver.run(index(LAYOUT, LAYOUT.thread("thread"), saver._describer))
    for number, (_, row) in enumerate(found.rows()):
        bucket.answer(Put(segment_in(LAYOUT.thread("thread"), f"{number:032x}"), encode_segment([row])))


MANY = tuple(Point(f"3{number:02}", values={"n": number}) for number in range(17))


def merged(name: str, start: Start) -> Case:
    return case_of(name, lambda bucket: segmented(bucket, *MANY), start, life(kept=MANY))


def healed(name: str) -> Case:
    return case_of(name, lambda bucket: lay(bucket, *MANY), filters(), life(kept=MANY))


CASES = {
    case.name: case
    for case in (
        copied("copy_thread"),
        copied("copy_thread of an old thread", 2 * HOUR_MS),
        pruned("prune", 0),
        pruned("prune of an old thread", 2 * HOUR_MS),
        runs_deleted("delete_for_runs", 0),
        runs_deleted("delete_for_runs, old", 2 * HOUR_MS),
        merged("merge", filters()),
        healed("tend"),
    )
}
each_case = pytest.mark.parametrize("name", CASES)


@each_case
def test_crash(name: str) -> None:
    """Stopped before or after any step, what is visible is whole, and a rerun completes the work."""
    # The requests of one round have too many orders to try all.
    assert crashes(CASES[name], range(TIMES)) > 1


@each_case
def test_lost_answer(name: str) -> None:
    """Whatever is repeated because its answer got lost, the work ends as it would have."""
    case = CASES[name]
    expected = case.expected()
    world = case.make()
    world.finish()
    for lost in [number for number, step in enumerate(world.trace) if isinstance(step.request, Put | Copy | Delete)]:
        world = case.make()
        number = 0
        while steps := world.steps():
            world.carry_out(steps[0], lost=(lambda: None) if number == lost else None)
            number += 1
        assert errors_of(world) == {}
        case.sound(world.bucket)
        assert case.content(world.bucket) == expected
        COUNTS[f"lost answer: {name}"] += 1
    assert losses(case) >= 1


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("merge", "tend")])
def test_failed_request(name: str) -> None:
    """The call raises what the store answers, leaves nothing half-visible, and succeeds when repeated."""
    assert failures(CASES[name]) >= 2


@pytest.mark.parametrize("name", ["merge", "tend"])
def test_failed_request_of_a_reader(name: str) -> None:
    """Where the manifest cannot be extended the filtered list succeeds; where reading fails it says so."""
    case = CASES[name]
    expected = case.expected()
    world = case.make()
    world.finish()
    steps = list(world.trace)
    for fail in ("before", "after"):
        for failing in range(len(steps)):
            world = case.make()
            for number in range(len(steps) + 9):
                if world.steps():
                    world.carry_out(world.steps()[0], fail=fail if number == failing else "")
            failed = world.running[case.name]
            if isinstance(steps[failing].request, Put | Delete):
                assert failed.error is None
                assert {place_of(one) for one in failed.result} == {point.place for point in MANY}
            else:
                assert isinstance(failed.error, StoreUnavailableError)
            case.sound(world.bucket)
            case.rerun(world.bucket)
            assert case.content(world.bucket) == expected
            COUNTS[f"failed request: {name}"] += 1


# Several operations at once


def errors_of(world: World) -> dict[str, Exception]:
    return {name: running.error for name, running in world.running.items() if running.error is not None}


def together(
    before: Callable[[MemoryBucket], Any],
    start: dict[str, Start],
    *,
    age_ms: int = 0,
    loads: str = "",
    bucket: MemoryBucket | None = None,
) -> Make:
    """Worlds in which `before` happened so long ago, and then some operations begin, each in a process of its own.

    The one that is named by `loads` has just read the whole thread. `bucket` is an empty one of the kind to use.
    """
    stored = copy_of(bucket or MemoryBucket())
    before(stored)
    stored.clock_ms += age_ms

    def make() -> World:
        world = World(copy_of(stored))
        for name, begin in start.items():
            saver = world.saver()
            if name == loads:
                for item in list(saver.list(config_of("thread", None))):
                    saver.get_tuple(item.config)
                world.bucket.clock_ms += MINUTE_MS
            world.start(name, begin(saver))
        return world

    return make


def attack(
    name: str, make: Make, allowed: Archive, *threads: str, end: Callable[[World], None], seeds: int = 4
) -> None:
    """Runs schedules: whatever is visible is sound after each step, at the end, and after a later sweep.

    As many random ones as `seeds` says; all of them where it is 0.
    """
    seen: set[Any] = set()

    def node(world: World) -> None:
        state = frozenset(
            world.name_of(key)
            for key in world.bucket.objects
            if LAYOUT.kind(key) in ("checkpoint", "value", "writes", "copying")
        )
        if state not in seen:
            seen.add(state)
            allowed.sound(world.bucket)

    def ended(world: World) -> None:
        end(world)
        if ("end", state := world.state()) not in seen:
            seen.add(("end", state))
            allowed.sound(world.bucket)
            swept(world.bucket, allowed, *threads)

    if seeds:
        COUNTS[f"{name} (sampled)"] += sample(make, range(seeds * TIMES), node=node, end=ended)
    else:
        COUNTS[name] += explore(make, node=node, end=ended, most=200_000)


def no_errors(world: World) -> None:
    assert errors_of(world) == {}


PUTS = {
    "follows the head": replace(
        D.child("4", values={"messages": ["new"], "document": BIGGER}, versions=D.versions | {"messages": 4}),
        new=("messages",),
    ),
    "removed parent, its large value": replace(
        Z.child("2a", values=Z.values | {"messages": ["new"]}, versions={"messages": 4, "document": 1, "log": 1}),
        new=("messages",),
    ),
    "removed parent, large values": replace(
        Z.child("2b", values=Z.values | {"messages": "new " * 50}, versions={"messages": 4, "document": 1, "log": 1}),
        new=("messages",),
    ),
    "a new head on a removed one": replace(
        Y.child("4", values=Y.values | {"messages": "new " * 50}, versions=dict(Y.versions) | {"messages": 4}),
        new=("messages",),
    ),
}
ages = pytest.mark.parametrize("age_ms", [0, 2 * HOUR_MS], ids=["young", "old"])
buckets = pytest.mark.parametrize(
    "bucket", [MemoryBucket(), PagedBucket(), MemoryBucket(ordered=False)], ids=["ordered", "paged", "unordered"]
)
loading = pytest.mark.parametrize("loads", ["put", ""], ids=["parent loaded", "parent read"])


@ages
@loading
@pytest.mark.parametrize("name", PUTS)
def test_put_and_prune(name: str, loads: str, age_ms: int) -> None:
    """A put that a prune overtakes reads whole or is pruned; the head and its history stay."""
    point = PUTS[name]
    stay = () if point.id == "4" else STAY
    allowed = life(
        *THREAD,
        point,
        kept=stay,
        exact={"follows the head": (B, D, point), "a new head on a removed one": ()}.get(name, (B, D)),
    )
    start = {"put": point.put, "prune": prunes()}
    make = together(lambda bucket: lay(bucket, *THREAD), start, age_ms=age_ms, loads=loads)
    attack(f"put and prune, {name}", make, allowed, end=no_errors)


@pytest.mark.parametrize("name", PUTS)
def test_put_and_copy(name: str) -> None:
    """A copy of a thread that is written to has all that was there, and reads whole; a second one has all."""
    point = PUTS[name]
    everything = (*THREAD, point)
    targets = moved(TARGET, *everything)
    allowed = life(*targets, point, kept=THREAD, exact=(*everything, *targets))

    def end(world: World) -> None:
        no_errors(world)
        found = places(world.bucket, TARGET)
        assert found >= {one.place for one in targets[:-1]}
        again = copy_of(world.bucket)
        run(again, copies())
        assert places(again, TARGET) == {one.place for one in targets}

    make = together(lambda bucket: lay(bucket, *THREAD), {"put": point.put, "copy": copies()}, age_ms=2 * HOUR_MS)
    attack(f"put and copy, {name}", make, allowed, "thread", TARGET, end=end, seeds=2)


@ages
@buckets
def test_prune_and_copy_of_the_same(bucket: MemoryBucket, age_ms: int) -> None:
    """A copy of a thread that is being pruned has at least what stays, and reads whole."""
    targets = moved(TARGET, *THREAD)
    stay = moved(TARGET, *STAY)
    allowed = life(*targets, *GONE, kept=STAY, exact=(B, D, *moved(TARGET, B, D)))

    def end(world: World) -> None:
        no_errors(world)
        assert places(world.bucket, TARGET) >= {one.place for one in stay}
        assert places(world.bucket, "thread") == {one.place for one in STAY}

    start = {"prune": prunes(), "copy": copies()}
    make = together(lambda bucket: lay(bucket, *THREAD), start, age_ms=age_ms, bucket=bucket)
    attack("prune and copy of the same", make, allowed, "thread", TARGET, end=end)


def begun(steps: int) -> Callable[[MemoryBucket], None]:
    """A thread, and a copy of it that was stopped after so many steps."""

    def before(bucket: MemoryBucket) -> None:
        lay(bucket, *THREAD)
        world = World(bucket)
        world.start("copy", copies()(process(bucket)))
        for _ in range(steps):
            if world.steps():
                world.carry_out(world.steps()[0])
        world.close()

    return before


@ages
@buckets
@pytest.mark.parametrize("steps", [0, 20, 30, 999])
def test_copy_and_prune_of_the_target(steps: int, bucket: MemoryBucket, age_ms: int) -> None:
    """The prune refuses, or it prunes what is whole: what stays of the target stays with its history."""
    targets, stay = moved(TARGET, *THREAD), moved(TARGET, *STAY)
    allowed = life(*targets, kept=THREAD, exact=(*THREAD, *moved(TARGET, B, D)))

    def end(world: World) -> None:
        errors = errors_of(world)
        assert errors.keys() <= {"prune", "copy"}
        assert all(isinstance(error, ThreadBusyError) for error in errors.values())
        assert places(world.bucket, TARGET) >= {one.place for one in stay}

    start = {"prune": prunes(TARGET), "copy": copies()}
    make = together(begun(steps), start, age_ms=age_ms, bucket=bucket)
    attack("copy and prune of the target", make, allowed, TARGET, end=end, seeds=2)


RUN_PUTS = {
    "in the run": replace(RUN_2.child("4", values=RUN_2.values, versions=RUN_2.versions), run="run 2"),
    "in another run": replace(RUN_2.child("4", values=RUN_2.values, versions=RUN_2.versions), run="run 3"),
    "with a large value": replace(
        RUN_2.child("4", values=RUN_2.values | {"messages": BIG}, versions=RUN_2.versions | {"messages": 4}),
        run="run 3",
        new=("messages",),
    ),
}


@ages
@loading
@pytest.mark.parametrize("name", RUN_PUTS)
def test_put_and_run_deletion(name: str, loads: str, age_ms: int) -> None:
    """What is put while its parent's run is deleted reads whole, or goes with the run."""
    point = RUN_PUTS[name]
    allowed = life(RUN_2, point, kept=(A, B), exact=(A, B))
    make = together(
        lambda bucket: lay(bucket, A, B, RUN_2),
        {"put": point.put, "delete": deletes_runs("run 2")},
        age_ms=age_ms,
        loads=loads,
    )

    def end(world: World) -> None:
        assert all(isinstance(error, ThreadBusyError) for error in errors_of(world).values())
        assert "put" not in errors_of(world)

    attack(f"put and delete_for_runs, {name}", make, allowed, end=end, seeds=3)


@ages
def test_two_prunes(age_ms: int) -> None:
    """Two prunes of one thread leave what one leaves."""
    allowed = life(*GONE, kept=STAY, exact=(B, D))

    def end(world: World) -> None:
        no_errors(world)
        assert places(world.bucket, "thread") == {one.place for one in STAY}

    start = {"one": prunes(), "two": prunes()}
    make = together(lambda bucket: lay(bucket, *THREAD), start, age_ms=age_ms)
    attack("two prunes", make, allowed, end=end)


@pytest.mark.parametrize("before", [segmented, lay], ids=["merge", "tend"])
def test_two_merges(before: Callable[..., Any]) -> None:
    """Two filtered lists that index and merge at once see every checkpoint, and so does the next."""
    everything = {point.place for point in MANY}

    def end(world: World) -> None:
        no_errors(world)
        for running in world.running.values():
            assert {place_of(item) for item in running.result} == everything
        assert {place_of(item) for item in run(copy_of(world.bucket), filters())} == everything

    make = together(lambda bucket: before(bucket, *MANY), {"one": filters(), "two": filters()})
    count = 0
    for seed in range(2 * TIMES):
        count += sample(make, [seed], end=end)
    COUNTS["two merges (sampled)"] += count


@ages
@buckets
@pytest.mark.parametrize("point", [D, F, Y], ids=["head", "removed, with writes", "removed, without"])
def test_put_writes_and_prune(point: Point, bucket: MemoryBucket, age_ms: int) -> None:
    """Writes of a checkpoint that stays are there; those of one that goes are swept with it."""
    allowed = life(*GONE, kept=STAY, exact=(B, D))
    allowed.writes[point.place] = [*allowed.writes[point.place], writes_of("task 2", MORE)]

    def end(world: World) -> None:
        no_errors(world)
        if point is D:
            found = process(world.bucket).get_tuple(point.config)
            assert found is not None
            assert set(writes_of("task 2", MORE)) <= set(found.pending_writes or ())

    start = {"writes": partial(put_writes, point=point, task="task 2", writes=MORE), "prune": prunes()}
    make = together(lambda bucket: lay(bucket, *THREAD), start, age_ms=age_ms, bucket=bucket)
    attack("put_writes and prune", make, allowed, end=end)


# A head, and one that a prune removes with its large value.
SMALL = (
    Point("1", values={"document": BIG}),
    Point("3", parent="1", values={"document": "small"}, versions={"document": 2}),
)
CHILD = SMALL[0].child("2", values={"document": BIG})
LARGE_CHILD = replace(CHILD, values={"document": BIGGER}, versions={"document": 3}, new=("document",))
# Two removals have hundreds of orders that take minutes to run.
LONG_PAIRS = ("other prune", "prune and deletion of runs")


def seeds_of(name: str) -> int:
    return 60 if name in LONG_PAIRS and not EVERY_SCHEDULE else 0


SMALL_STARTS: dict[str, Start] = {
    "put": CHILD.put,
    "large put": LARGE_CHILD.put,
    "copy": copies(),
    "put_writes": partial(put_writes, point=SMALL[0], task="task 2", writes=MORE),
    "other prune": prunes(),
}


OTHER = [("document", "other")]
SMALL_PAIRS: dict[str, tuple[dict[str, Start], tuple[str, ...]]] = {
    "put and copy": ({"put": CHILD.put, "copy": copies()}, ("thread", TARGET)),
    "large put and copy": ({"put": LARGE_CHILD.put, "copy": copies()}, ("thread", TARGET)),
    "put_writes and copy": (
        {"writes": partial(put_writes, point=SMALL[0], task="task 2", writes=OTHER), "copy": copies()},
        ("thread", TARGET),
    ),
    "put and deletion of its run": (
        {"put": replace(CHILD, run="run 3").put, "delete": deletes_runs("run 1")},
        ("thread",),
    ),
    "large put and deletion of its run": (
        {"put": replace(LARGE_CHILD, run="run 3").put, "delete": deletes_runs("run 1")},
        ("thread",),
    ),
    "prune and deletion of runs": ({"prune": prunes(), "delete": deletes_runs("run 1")}, ("thread",)),
}


@ages
@pytest.mark.parametrize("name", SMALL_PAIRS)
def test_every_schedule_of_a_pair(name: str, age_ms: int) -> None:
    """In the orders of two operations on a small thread, what is visible stays whole."""
    start, threads = SMALL_PAIRS[name]
    stored = tuple(replace(point, run=f"run {number}") for number, point in enumerate(SMALL, 1))
    children = [replace(point, run=run) for point in (CHILD, LARGE_CHILD) for run in (None, "run 3")]
    points = [*stored, *children]
    kept = [stored[1]] if "run" in name else list(stored)
    allowed = Life(points=[*points, *moved(TARGET, *points)], kept=kept)
    for thread in ("thread", TARGET):
        allowed.writes[thread, "", SMALL[0].id] = [writes_of("task 2", OTHER)]

    def before(bucket: MemoryBucket) -> None:
        saver = process(bucket)
        for point in stored:
            point.store(saver)

    def end(world: World) -> None:
        no_errors(world)
        if "copy" in name:
            assert places(world.bucket, TARGET) >= {point.place for point in moved(TARGET, *stored)}
        assert not keys_of(world.bucket, "copying", "removing")

    make = together(before, start, age_ms=age_ms)
    attack(name, make, allowed, *threads, end=end, seeds=seeds_of(name))


TARGET_PAIRS: dict[str, dict[str, Start]] = {
    "two copies": {"one": copies(), "two": copies()},
    "copy and deletion of the target": {"copy": copies(), "delete": deletes(TARGET)},
}


@ages
@pytest.mark.parametrize("name", TARGET_PAIRS)
def test_who_changes_the_target_of_a_copy(name: str, age_ms: int) -> None:
    """Two copies both end, or one leaves the rest to the other; a deletion and a copy may give up, and say so."""
    targets = moved(TARGET, *SMALL)
    allowed = Life(points=[*SMALL, *targets], kept=list(SMALL))

    def before(bucket: MemoryBucket) -> None:
        saver = process(bucket)
        for point in SMALL:
            point.store(saver)

    def end(world: World) -> None:
        errors = errors_of(world)
        assert all(isinstance(error, StoreUnavailableError) for error in errors.values())
        if name == "two copies":
            assert not errors
            assert places(world.bucket, TARGET) == {point.place for point in targets}
            assert not keys_of(world.bucket, "copying")
        again = copy_of(world.bucket)
        run(again, copies())
        assert places(again, TARGET) == {point.place for point in targets}
        assert not keys_of(again, "copying")

    make = together(before, TARGET_PAIRS[name], age_ms=age_ms)
    attack(name, make, allowed, "thread", TARGET, end=end, seeds=30)


@ages
@pytest.mark.parametrize("name", SMALL_STARTS)
def test_every_schedule_with_a_prune(name: str, age_ms: int) -> None:
    """In every order of a small thread's prune and another operation, what is visible stays whole."""
    allowed = Life(points=[*SMALL, CHILD, LARGE_CHILD, *moved(TARGET, *SMALL)], kept=[SMALL[1]])
    allowed.writes[SMALL[0].place] = [writes_of("task 2", MORE)]

    def before(bucket: MemoryBucket) -> None:
        saver = process(bucket)
        for one in SMALL:
            one.store(saver)

    make = together(before, {name: SMALL_STARTS[name], "prune": prunes()}, age_ms=age_ms, loads=name)
    attack(
        f"{name} and prune of a small thread",
        make,
        allowed,
        *(["thread", TARGET] if name == "copy" else []),
        end=no_errors,
        seeds=seeds_of(name),
    )


# A source's fork that came after it was copied: it needs an ancestor that a prune of the copy removes.
STEM = Point("1", values={"log": ["seed"]})
HEAD = Point("2", parent="1", values={"log": ["head"]}, versions={"log": 2})
FORK = Point("3", parent="1", values={"k": 1}, versions={"log": 3, "k": 1}, new=("log", "k"))


def test_every_schedule_of_copying_again_and_pruning_the_target() -> None:
    """One gives way: what a copy adds to a target never lacks ancestors that a prune took by an older listing."""
    points = (STEM, HEAD, FORK)
    targets = moved(TARGET, *points)
    ends: Counter[str] = Counter()

    def end(world: World) -> None:
        errors = errors_of(world)
        assert all(isinstance(error, ThreadBusyError) for error in errors.values())
        ends[" and ".join(sorted(errors)) or "none"] += 1
        found = places(world.bucket, TARGET)
        if "copy" not in errors:
            assert found >= {targets[0].place, targets[2].place}
        assert not keys_of(world.bucket, "copying", "removing")
        run(world.bucket, copies())
        assert places(world.bucket, TARGET) == {point.place for point in targets}

    allowed = life(*targets, kept=points, exact=(*points, targets[2]))
    make = together(stored_fork, {"copy": copies(), "prune": prunes(TARGET)})
    attack("copying again and pruning the target", make, allowed, "thread", TARGET, end=end, seeds=0)
    # Each of them was refused in some schedule, and neither in some.
    assert {"copy", "prune", "none"} <= ends.keys()


# Removals that take too long


def stored_fork(bucket: MemoryBucket) -> None:
    """A copied thread, and a fork in its source that needs what a prune of the copy removes."""
    lay(bucket, STEM, HEAD)
    run(bucket, copies())
    FORK.store(process(bucket))


@pytest.mark.parametrize("minutes", [14, 16, 29, 31, 120])
def test_a_prune_that_sleeps(minutes: int) -> None:
    """Whenever a prune sleeps, and whatever is copied meanwhile, it removes nothing that is needed by then."""
    targets = moved(TARGET, STEM, HEAD, FORK)
    allowed = life(*targets, kept=(STEM, HEAD, FORK), exact=(targets[2],))
    make = together(stored_fork, {"prune": prunes(TARGET)}, age_ms=2 * HOUR_MS)
    world = make()
    world.finish()
    refused = copied = 0
    for asleep in range(len(world.trace)):
        world = make()
        for number in range(len(world.trace) + 100):
            if not world.steps():
                break
            if number == asleep:
                world.bucket.clock_ms += minutes * MINUTE_MS
                try:
                    run(world.bucket, copies())
                except ThreadBusyError:
                    refused += 1
                else:
                    copied += 1
                    assert targets[2].place in places(world.bucket, TARGET)
            world.carry_out(world.steps()[0])
            allowed.sound(world.bucket)
        no_errors(world)
        COUNTS[f"prune that sleeps {minutes} minutes"] += 1
    # A mark keeps copies out for half an hour.
    assert copied
    assert bool(refused) == (minutes <= 30)
