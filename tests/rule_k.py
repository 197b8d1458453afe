"""Rule K, tried on random threads: what a prune leaves reads as before, goes on as before, and none of it is too much.

`check` drives one random thread and tries the rule on it. `Tally` says how much was tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from random import Random
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from memory_saver import MemorySaver
from observing import Ordinals
from random_graphs import LISTS, MAPPING, Config, Drive, Recipe

from s3_saver.drivers.memory import MemoryBucket

THREAD, COPY = "thread", "copy"
_COUNTERS = ("counters_since_delta_snapshot", "delta_updates_since_snapshot")


@dataclass
class Tally:
    """What was tried. `longer` are namespaces in which a prune had to keep more than the newest checkpoint."""

    threads: int = 0
    operations: int = 0
    prunes: int = 0
    namespaces: int = 0
    longer: int = 0
    kept: int = 0
    removed: int = 0
    dropped: int = 0
    continued: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(Tally)))

    def __str__(self) -> str:
        return ", ".join(f"{getattr(self, item.name):,} {item.name}" for item in fields(Tally))


class Failure(AssertionError):
    """A check that failed, with what it takes to see it again."""


def check(seed: int, *, deltas: bool = True) -> Tally:
    """Drive the thread of `seed` and try rule K on it, at its end and perhaps on the way."""
    trial = Trial(seed, deltas)
    try:
        return trial.run()
    except Exception as error:
        where = f"seed {seed}, deltas={deltas}: {trial.recipe}, after {trial.done}"
        raise Failure(f"{where}: {type(error).__name__}: {error}"[:20_000]) from error


@dataclass
class Trial:
    seed: int
    deltas: bool
    recipe: Recipe = field(init=False)
    dice: Random = field(init=False)
    bucket: MemoryBucket = field(default_factory=MemoryBucket)
    done: list[str] = field(default_factory=list)
    tally: Tally = field(default_factory=lambda: Tally(threads=1))

    def __post_init__(self) -> None:
        self.dice = Random(self.seed)
        self.recipe = Recipe.of(self.dice, deltas=self.deltas)

    def run(self) -> Tally:
        length = self.dice.randint(2, 6)
        saver = MemorySaver(self.bucket)
        drive = Drive(self.recipe.build(saver), config_of(THREAD), self.dice)
        tried_at = {length, self.dice.randint(1, 3 * length)}
        for number in range(1, length + 1):
            if self.dice.random() < 0.3:
                # A new process, which remembers nothing.
                saver = MemorySaver(self.bucket)
                drive.graph = self.recipe.build(saver)
            self.done.append(drive.step())
            if number in tried_at:
                self.try_rule(saver)
        self.tally.operations = length
        return self.tally

    def try_rule(self, saver: MemorySaver) -> None:
        """Prune a copy, or the thread as it is, in a bucket of its own, and look at what is left."""
        bucket = copy_of(self.bucket)
        thread = self.dice.choice([THREAD, COPY])
        pruning = MemorySaver(bucket)
        if thread == COPY:
            pruning.copy_thread(THREAD, COPY)
        stored = list(pruning.list(config_of(thread)))
        if not stored:
            return
        planned = pruning.plan_prune([thread]).threads[0]
        kept = {(fate.namespace, fate.checkpoint_id) for fate in planned.fates if fate.stays}
        heads = heads_of(stored)
        assert kept == kept_by_contract(stored), "the rule is not the contract's"
        before = self.seen(pruning, thread, heads)
        unpruned = copy_of(bucket)
        self.dice.choice([pruning, MemorySaver(bucket)]).prune([thread])
        reader = MemorySaver(bucket)
        left = list(reader.list(config_of(thread)))
        assert [place_of(item) for item in left] == [place_of(item) for item in stored if place_of(item) in kept]
        assert self.seen(reader, thread, heads) == before
        if not self.deltas:
            assert len(kept) == len(heads), "a graph without delta channels needs the newest checkpoints only"
        self._count(len(stored), kept, heads)
        self._drop_one(bucket, thread, kept, heads)
        if self.dice.random() < 0.4:
            self._go_on(unpruned, bucket, thread)

    def _count(self, stored: int, kept: set[tuple[str, str]], heads: Mapping[str, str]) -> None:
        self.tally.prunes += 1
        self.tally.namespaces += len(heads)
        self.tally.longer += sum(sum(place[0] == namespace for place in kept) > 1 for namespace in heads)
        self.tally.kept += len(kept)
        self.tally.removed += stored - len(kept)

    def seen(self, saver: MemorySaver, thread: str, heads: Mapping[str, str]) -> list[Any]:
        """All that can be seen of the newest checkpoints: stored state, pending writes, histories, states."""
        snapshot = self.recipe.build(saver).get_state(config_of(thread), subgraphs=True)
        # Nested configs hold the saver itself.
        found: list[Any] = [Ordinals().plain(snapshot)]
        for namespace in heads:
            item = saver.get_tuple(config_of(thread, namespace))
            assert item is not None
            found += [item, saver.get_delta_channel_history(config=item.config, channels=asked_of(item))]
        return found

    def _drop_one(
        self, bucket: MemoryBucket, thread: str, kept: set[tuple[str, str]], heads: Mapping[str, str]
    ) -> None:
        """Every ancestor that was kept is needed: without one of them a history is another one."""
        ancestors = sorted(kept - set(heads.items()))
        for namespace, checkpoint_id in self.dice.sample(ancestors, min(1, len(ancestors))):
            without = copy_of(bucket)
            saver = MemorySaver(without)
            folder = saver._shared.layout.folder(thread, namespace, checkpoint_id)
            for key in [key for key in without.objects if key.startswith(folder)]:
                del without.objects[key]
            head = saver.get_tuple(config_of(thread, namespace))
            assert head is not None
            asked: Any = {"config": head.config, "channels": asked_of(head)}
            expected = MemorySaver(bucket).get_delta_channel_history(**asked)
            assert saver.get_delta_channel_history(**asked) != expected, f"{checkpoint_id} was kept for nothing"
            self.tally.dropped += 1

    def _go_on(self, unpruned: MemoryBucket, pruned: MemoryBucket, thread: str) -> None:
        """Two more operations end in the same state, pruned or not."""
        seed = self.dice.randrange(1_000_000)
        states = []
        for bucket in (unpruned, pruned):
            drive = Drive(self.recipe.build(MemorySaver(bucket)), config_of(thread), Random(seed))
            names = [drive.step(on_head=True) for _ in range(2)]
            # A graph of a new process: all of it was stored.
            snapshot = self.recipe.build(MemorySaver(bucket)).get_state(config_of(thread), subgraphs=True)
            states.append((names, Ordinals().plain(snapshot)))
        assert states[0] == states[1], "another state was reached from what the prune left"
        self.tally.continued += 1


def config_of(thread: str, namespace: str | None = None) -> Config:
    return {"configurable": {"thread_id": thread} | ({} if namespace is None else {"checkpoint_ns": namespace})}


def asked_of(head: CheckpointTuple) -> list[str]:
    """The channels that LangGraph asks the histories of: a reducer's, with a version and without a value."""
    missing = head.checkpoint["channel_versions"].keys() - head.checkpoint["channel_values"].keys()
    return sorted(missing & {*LISTS, MAPPING, "own"})


def copy_of(bucket: MemoryBucket) -> MemoryBucket:
    return MemoryBucket(clock_ms=bucket.clock_ms, objects=dict(bucket.objects))


def place_of(item: CheckpointTuple) -> tuple[str, str]:
    named = item.config["configurable"]
    return named["checkpoint_ns"], named["checkpoint_id"]


def heads_of(stored: Sequence[CheckpointTuple]) -> dict[str, str]:
    """The newest checkpoint of each namespace."""
    heads: dict[str, str] = {}
    for namespace, checkpoint_id in map(place_of, stored):
        heads[namespace] = max(checkpoint_id, heads.get(namespace, ""))
    return dict(sorted(heads.items()))


# Rule K once more, from what a saver returns: the words of the contract, without the archive's headers


def kept_by_contract(stored: Sequence[CheckpointTuple]) -> set[tuple[str, str]]:
    """What a prune keeps: for each namespace the newest checkpoint, and the ancestors that it needs."""
    by_place = {place_of(item): item for item in stored}
    kept: set[tuple[str, str]] = set()
    for place in heads_of(stored).items():
        path: list[CheckpointTuple] = []
        while place in by_place and by_place[place] not in path:
            path.append(by_place[place])
            parent = by_place[place].parent_config
            place = (place[0], parent["configurable"]["checkpoint_id"] if parent else "")
        kept |= {place_of(path[0])} | {place_of(item) for item in _needed(path)}
    return kept


def _needed(path: Sequence[CheckpointTuple]) -> list[CheckpointTuple]:
    head, ancestors = path[0], path[1:]
    snapshots = {name for item in path for name, value in _values(item).items() if isinstance(value, _DeltaSnapshot)}
    suspects = snapshots | _counted(path) | _consumed(path)
    needed: list[CheckpointTuple] = []
    for name in suspects - _values(head).keys():
        if name not in head.checkpoint["channel_versions"] and name not in snapshots:
            continue
        valued = [number for number, item in enumerate(ancestors) if name in _values(item)]
        written = [number for number, item in enumerate(ancestors) if name in _written(item)]
        end = valued[0] if valued else written[-1] if written else -1
        needed += ancestors[: end + 1]
    return needed


def _counted(path: Sequence[CheckpointTuple]) -> set[str]:
    return {name for item in path for counters in _COUNTERS for name in (item.metadata.get(counters) or {})}  # type: ignore[attr-defined]


def _consumed(path: Sequence[CheckpointTuple]) -> set[str]:
    """Channels that a child has no value of, but another version than its parent, which has a write for them."""
    found: set[str] = set()
    for child, parent in pairwise(path):
        versions = child.checkpoint["channel_versions"], parent.checkpoint["channel_versions"]
        found |= {
            name
            for name in _written(parent) - _values(child).keys()
            if not name.startswith(("__", "branch:")) and versions[0].get(name) != versions[1].get(name)
        }
    return found


def _values(item: CheckpointTuple) -> Mapping[str, Any]:
    return item.checkpoint["channel_values"]


def _written(item: CheckpointTuple) -> set[str]:
    return {channel for _, channel, _ in item.pending_writes or []}
