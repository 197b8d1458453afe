"""Schedules: operations over a bucket in memory, carried out request by request, in every order.

A `World` is a bucket and the operations under way on it. Each of them has steps that may be carried out next: the
unanswered requests of its round, in any order, and a deletion of several keys is one step a key, since a store deletes
them one by one. So a process can be stopped between any two steps, an answer can be lost, and another process's step
can come between.

    explore(make, node=check, end=check)     every order of the steps of all operations, from a new world each time
    sample(make, seeds, node=…, end=…)       seeded random orders, where every one would be too many
    repeated(operation)                      the same, where the first answer to each conditional put gets lost
    crashes(case), losses(case), failures(case)    one operation, attacked at each of its steps

`explore` leaves out orders that differ only in swapping neighbours that cannot matter to each other (two reads, say),
by sleep sets: every state of the bucket that any order leads to is still visited. A failing check is raised with the
steps that led to it, or with the seed, as a note.

To add an operation to the attacks on single operations, write a `Case`: what is there before, the operation, and what
must hold when it has ended. To interleave it with others, write a `make` that starts several in one world. What a
reader may see of a bucket is stated once, in `reading.py`.
"""

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from memory_saver import MemorySaver

from s3_saver.bucket import (
    ABSENT,
    Copy,
    CreateBucket,
    Delete,
    Deleted,
    Get,
    Late,
    List,
    Now,
    Operation,
    Put,
    Request,
    Round,
    Work,
)
from s3_saver.drivers.memory import MemoryBucket
from s3_saver.errors import StoreUnavailableError

# How many schedules were run, by the name of what was attacked.
COUNTS: Counter[str] = Counter()


@dataclass(frozen=True, slots=True)
class Step:
    """One request, or one key of a deletion, that a running operation waits for. `place` is the same in every run."""

    place: tuple[str, int, int, Any]
    request: Request[Any]

    @property
    def key(self) -> str:
        """The key or prefix that the request is about; empty where it is about the bucket."""
        match self.request:
            case Get(key) | Put(key) | Copy(_, key) | Delete((key,)) | List(key):
                return key
        return ""

    def __str__(self) -> str:
        return f"{self.place[0]}: {type(self.request).__name__} {self.key}".rstrip()


class Running:
    """An operation under way. It ends with a `result` or an `error`."""

    def __init__(
        self, name: str, bucket: MemoryBucket, operation: Operation[Any], name_of: Callable[[str], Any] = str
    ) -> None:
        self.name = name
        self.result: Any = None
        self.error: Exception | None = None
        self.ended = False
        self.steps: list[Step] = []
        self._bucket = bucket
        self._operation = operation
        self._name_of = name_of
        self._rounds = 0
        self._round: Round = ()
        self._answers: list[Any] = []
        self._failure: Exception | None = None
        self._resume(lambda: operation.send(None))  # type: ignore[arg-type]

    def carry_out(self, step: Step, *, lost: Callable[[], None] | None = None, fail: str = "") -> None:
        """Carry `step` out.

        `lost`: its first answer gets lost; what `lost` does happens, then the client repeats the request.
        `fail`: the store gives up on it, "before" or "after" it was carried out.
        """
        self.steps.remove(step)
        if fail != "before":
            answer = self._bucket.answer(step.request)
            if lost is not None:
                lost()
                answer = self._bucket.answer(step.request)
            before = self._answers[step.place[2]]
            self._answers[step.place[2]] = _joined(before, answer) if isinstance(before, Deleted) else answer
        if fail:
            self._failure = StoreUnavailableError(f"{step}: simulated")
        if not self.steps:
            self._next()

    def close(self) -> None:
        """The process dies here."""
        self._operation.close()

    def _next(self) -> None:
        """All of the round has ended: an error of it rises now."""
        failure, self._failure, answers = self._failure, None, self._answers
        if failure is not None:
            self._resume(lambda: self._operation.throw(failure))
        else:
            self._resume(lambda: self._operation.send(answers))

    def _resume(self, resume: Callable[[], Round]) -> None:
        try:
            self._round = resume()
        except StopIteration as stop:
            self.result, self.ended = stop.value, True
            return
        except Exception as error:
            self.error, self.ended = error, True
            return
        self._rounds += 1
        self._answers = [None] * len(self._round)
        for index, request in enumerate(self._round):
            if isinstance(request, Now | Work):
                self._answers[index] = self._bucket.answer(request)
            else:
                parts = {None: request}
                if isinstance(request, Delete):
                    self._answers[index] = Deleted({})
                    parts = {self._name_of(key): replace(request, keys=(key,)) for key in request.keys}
                self.steps += [Step((self.name, self._rounds, index, part), one) for part, one in parts.items()]
        if not self.steps:
            self._next()


def _joined(one: Deleted, other: Deleted | Late) -> Deleted | Late:
    """The answer to a deletion of several keys, of which some were not sent in time or stayed."""
    return other if isinstance(other, Late) else Deleted({**one.failed, **other.failed})


@dataclass
class World:
    """A bucket, the operations under way on it, and the steps that were carried out."""

    bucket: MemoryBucket = field(default_factory=MemoryBucket)
    running: dict[str, Running] = field(default_factory=dict)
    trace: list[Step] = field(default_factory=list)
    # Operations of one process share its memory, so that no two of their steps can be swapped unseen.
    shared_memory: bool = False
    # Which step put each object; those that were there before have a number.
    origins: dict[str, Any] = field(default_factory=dict)

    def saver(self, **settings: Any) -> MemorySaver:
        """A saver in a process of its own: it remembers nothing."""
        return process(self.bucket, **settings)

    def start(self, name: str, operation: Operation[Any]) -> Running:
        if not self.running:
            self.origins = {key: number for number, key in enumerate(self.bucket.objects)}
        self.running[name] = Running(name, self.bucket, operation, self.name_of)
        return self.running[name]

    def name_of(self, key: str) -> Any:
        """What to call a key that may hold a unique name: the step that put it."""
        return self.origins.get(key, key)

    def steps(self) -> list[Step]:
        return [step for running in self.running.values() for step in running.steps]

    def carry_out(self, step: Step, **how: Any) -> None:
        self.trace.append(step)
        self.running[step.place[0]].carry_out(step, **how)
        request = step.request
        put = isinstance(request, Put) and self.bucket.objects.get(request.key, (None,))[0] is request.body
        if isinstance(request, Put | Copy) and (put or isinstance(request, Copy)):
            self.origins[request.key] = step.place

    def state(self) -> frozenset[Any]:
        """What the bucket holds, said in a way that is the same in every run although unique names are not."""
        return frozenset(self.name_of(key) for key in self.bucket.objects)

    def finish(self) -> None:
        """Carry out what is left, each operation's steps in their order."""
        while steps := self.steps():
            self.carry_out(steps[0])

    def close(self) -> None:
        for running in self.running.values():
            running.close()


# As small as can be, so that a short text is a large value.
INLINE_LIMIT = 100


def process(bucket: MemoryBucket, **settings: Any) -> MemorySaver:
    """A saver in a process of its own: it remembers nothing, and a value of more than 100 bytes is large."""
    name = "bucket" if bucket.ordered else "bucket--x-s3"
    return MemorySaver(bucket, name=name, **({"inline_limit": INLINE_LIMIT} | settings))


def copy_of(bucket: MemoryBucket) -> MemoryBucket:
    return replace(bucket, objects=dict(bucket.objects))


class PagedBucket(MemoryBucket):
    """Lists four keys at a time, so that everything may happen between two pages."""

    def answer(self, request: Request[Any]) -> Any:
        if isinstance(request, List):
            request = replace(request, limit=min(request.limit, 4))
        return super().answer(request)


class _Raw(Awaitable[list[Any]]):
    """A round as it is."""

    def __init__(self, round_: Round) -> None:
        self.round = round_

    def __await__(self) -> Generator[Round, list[Any], list[Any]]:
        return (yield self.round)


async def repeated(operation: Operation[Any]) -> Any:
    """The operation's result, where the first answer to each conditional put gets lost: the client repeats the put.

    The repetition is a round of its own, so that anything may happen in between.
    """
    lost: set[str] = set()
    try:
        round_ = operation.send(None)  # type: ignore[arg-type]
        while True:
            answers = await _Raw(round_)
            if isinstance(put := round_[0], Put) and put.expect is ABSENT and put.key not in lost:
                lost.add(put.key)
                answers = await _Raw(round_)
            round_ = operation.send(answers)
    except StopIteration as stop:
        return stop.value
    finally:
        operation.close()


Make = Callable[[], World]
Check = Callable[[World], None]


def _nothing(world: World) -> None:
    pass


def explore(make: Make, *, node: Check = _nothing, end: Check = _nothing, most: int = 20_000) -> int:
    """Check the world in every state (`node`) and at the end (`end`) of every schedule. How many were run.

    States are told apart by what the bucket holds and what is under way. More than `most` schedules are too many to
    wait for: use `sample`.
    """
    node = _once(node)
    # Along the current path: the steps still to be tried, those that need not be, and the one that is taken.
    path: list[tuple[list[tuple[Any, ...]], dict[tuple[Any, ...], Step], Step]] = []
    fresh_from = count = 0
    while True:
        world = make()
        with _noted(world):
            if not path:
                node(world)
            complete = _descend(world, path, fresh_from, node)
            if complete:
                count += 1
                end(world)
        world.close()
        assert count <= most, f"more than {most} schedules"
        while path and not path[-1][0]:
            path.pop()
        if not path:
            return count
        left, asleep, taken = path[-1]
        # What was tried here sleeps in the branches to come, until a step that it matters to wakes it.
        path[-1] = left[1:], asleep | {taken.place: taken}, Step(left[0], taken.request)
        fresh_from = len(path) - 1


def _once(node: Check) -> Check:
    states: set[Any] = set()

    def check(world: World) -> None:
        state = world.state(), frozenset(step.place for step in world.steps())
        if state not in states:
            states.add(state)
            node(world)

    return check


def _descend(world: World, path: list[Any], fresh_from: int, node: Check) -> bool:
    """Follow `path`, then the first step each time. False where all that is left to do was done in other orders."""
    depth = 0
    while steps := world.steps():
        if depth == len(path):
            asleep = _still_asleep(world, path)
            todo = [step for step in steps if step.place not in asleep]
            if not todo:
                return False
            path.append(([step.place for step in todo[1:]], asleep, todo[0]))
        left, asleep, taken = path[depth]
        step = next(step for step in steps if step.place == taken.place)
        # Unique names differ between runs, so the step of this run counts.
        path[depth] = left, {s.place: s for s in steps if s.place in asleep}, step
        world.carry_out(step)
        depth += 1
        if depth > fresh_from:
            node(world)
    return True


def _still_asleep(world: World, path: list[Any]) -> dict[tuple[Any, ...], Step]:
    if not path or world.shared_memory:
        return {}
    _, asleep, taken = path[-1]
    return {place: step for place, step in asleep.items() if independent(step.request, taken.request)}


def independent(one: Request[Any], other: Request[Any]) -> bool:
    """Whether the order of two requests can matter to nobody."""
    return not _concerns(one, other) and not _concerns(other, one)


def _concerns(writer: Request[Any], other: Request[Any]) -> bool:
    """Whether what `writer` changes may change the answer to `other`, or what it leaves."""
    match writer:
        case Put(key) | Copy(_, key) | Delete((key,)):
            match other:
                case List(prefix):
                    return key.startswith(prefix)
                case Copy(source, copied):
                    return key in (source, copied)
                case Get(touched) | Put(touched) | Delete((touched,)):
                    return key == touched
            return False
    return isinstance(writer, CreateBucket)


def sample(make: Make, seeds: Iterable[int], *, node: Check = _nothing, end: Check = _nothing) -> int:
    """Check the world after every step (`node`) and at the end (`end`) of one random schedule for each seed."""
    count = 0
    for seed in seeds:
        dice = random.Random(seed)
        world = make()
        with _noted(world, f"seed {seed}"):
            node(world)
            while steps := world.steps():
                world.carry_out(dice.choice(steps))
                node(world)
            end(world)
        world.close()
        count += 1
    return count


class _noted:
    """Adds to an error the steps that led to it."""

    def __init__(self, world: World, seed: str = "") -> None:
        self.world, self.seed = world, seed

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            steps = "\n".join(f"  {number}. {step}" for number, step in enumerate(self.world.trace, 1))
            error.add_note(f"after these steps {self.seed}:\n{steps or '  none'}")
            self.world.close()


# Attacks on one operation


@dataclass(frozen=True)
class Case:
    """An operation to attack. Every function gets the bucket to look at, or a saver over it.

    before: fills the bucket and returns the saver that will act; it may remember what it has done.
    act: the operation; called again, on a new saver, it must complete what a dead process left.
    sound: asserts that all that can be seen is whole and that nothing acknowledged is missing; called after each step.
    content: what there is to compare: after a crash and a rerun it equals that of a run without one.
    """

    name: str
    before: Callable[[MemoryBucket], MemorySaver]
    act: Callable[[MemorySaver], Operation[Any]]
    sound: Callable[[MemoryBucket], None]
    content: Callable[[MemoryBucket], Any]

    def make(self) -> World:
        world = World()
        world.start(self.name, self.act(self.before(world.bucket)))
        return world

    def expected(self) -> Any:
        world = self.make()
        world.finish()
        running = world.running[self.name]
        assert running.error is None
        self.sound(world.bucket)
        return self.content(world.bucket)

    def rerun(self, bucket: MemoryBucket) -> None:
        saver = process(bucket)
        saver.driver.run(self.act(saver))


def crashes(case: Case, seeds: Iterable[int] | None = None) -> int:
    """Stop the operation before its first and after each of its steps: how many stops were tried.

    What is visible then is sound; a rerun leaves what a run without a crash leaves, and so it is still when what the
    dead process had under way is carried out after all.
    """
    expected = case.expected()
    stops = 0

    def stop(world: World) -> None:
        nonlocal stops
        stops += 1
        case.sound(world.bucket)
        bucket = copy_of(world.bucket)
        case.rerun(bucket)
        case.sound(bucket)
        assert case.content(bucket) == expected
        for step in world.steps():
            bucket.answer(step.request)
            case.sound(bucket)
        assert case.content(bucket) == expected

    if seeds is None:
        explore(case.make, node=stop)
    else:
        sample(case.make, seeds, node=stop)
    COUNTS[f"crash: {case.name}"] += stops
    return stops


def losses(case: Case, lost: Callable[[MemoryBucket], None] = lambda bucket: None) -> int:
    """Lose the first answer of each put in turn, and of all at once: the client repeats it. How many runs.

    The operation succeeds, and leaves what a run without losses leaves. `lost` happens between the two.
    """
    expected = case.expected()
    runs = 0
    for choose in (*_each(case, Put), lambda number: True):
        world = case.make()
        with _noted(world):
            _carry_out(
                world,
                lambda number: {"lost": lambda: lost(world.bucket)} if choose(number) else {},  # noqa: B023
            )
            error = world.running[case.name].error
            if error is not None:
                raise error
            case.sound(world.bucket)
            assert case.content(world.bucket) == expected
        runs += 1
    COUNTS[f"lost answer: {case.name}"] += runs
    return runs


def failures(case: Case) -> int:
    """Let the store give up on each request in turn, before it is carried out and after. How many runs.

    The call raises it, what is visible is sound, and the call succeeds when it is made again.
    """
    expected = case.expected()
    runs = 0
    for fail in ("before", "after"):
        for choose in _each(case, Request):
            world = case.make()
            with _noted(world, fail):
                _carry_out(world, lambda number: {"fail": fail} if choose(number) else {})  # noqa: B023
                assert isinstance(world.running[case.name].error, StoreUnavailableError)
                case.sound(world.bucket)
                case.rerun(world.bucket)
                case.sound(world.bucket)
                assert case.content(world.bucket) == expected
            runs += 1
    COUNTS[f"failed request: {case.name}"] += runs
    return runs


def _each(case: Case, kind: type[Any]) -> Iterator[Callable[[int], bool]]:
    """One choice of a step for each request of the `kind` that the operation makes."""
    world = case.make()
    world.finish()
    for chosen, step in enumerate(world.trace):
        if isinstance(step.request, kind):
            yield lambda number, chosen=chosen: number == chosen  # type: ignore[misc]


def _carry_out(world: World, how: Callable[[int], dict[str, Any]]) -> None:
    number = 0
    while steps := world.steps():
        step = steps[0]
        faults = how(number)
        world.carry_out(step, **(faults if isinstance(step.request, Put) or "fail" in faults else {}))
        number += 1
