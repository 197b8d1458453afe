"""Pruning a thread: a plan, which is a value that can be printed, and acting on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from manifests.keys import Layout
from s3_saver.operations.excluding import Removed, refuse_copying, remove_and_sweep
from s3_saver.operations.keep import Linked, Writes, by_namespace, needed_by, plain
from s3_saver.operations.load import SENDS_IN_VALUES
from s3_saver.operations.removing import Doomed
from s3_saver.operations.survey import Describe, Index, index


@dataclass(frozen=True, slots=True)
class Rule:
    """Which checkpoints of each namespace stay: the newest `newest`, and those stored less than `age_ms` ago.

    With `newest=0` the thread is deleted.
    """

    newest: int = 1
    age_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Fate:
    """What a plan says of one checkpoint."""

    namespace: str
    checkpoint_id: str
    stays: bool
    why: str
    bytes: int


@dataclass(frozen=True)
class ThreadPlan:
    """What a prune of one thread would do. Nothing is changed until it is acted on."""

    thread_id: str
    fates: tuple[Fate, ...]
    doomed: tuple[Doomed, ...] = field(repr=False, default=())


async def plan(layout: Layout, thread_id: str, rule: Rule, describe: Describe) -> ThreadPlan:
    """Decide the fate of every checkpoint of the thread. Rounds: those of `index`, and at most two for writes.

    Raises `Refused` where a copy into the thread has not ended.
    """
    found = await index(layout, layout.thread(thread_id), describe)
    if rule.newest:
        refuse_copying(found.survey)
    return await _plan(found, thread_id, rule)


async def _plan(found: Index, thread_id: str, rule: Rule) -> ThreadPlan:
    fates: list[Fate] = []
    doomed: list[Doomed] = []
    for namespace, members in by_namespace(found).items():
        kept = await _kept(found, members, rule)
        for checkpoint_id in sorted(members, reverse=True):
            item = members[checkpoint_id]
            why = kept.get(checkpoint_id, _why(rule))
            fates.append(Fate(namespace, checkpoint_id, checkpoint_id in kept, why, item.bytes))
            if checkpoint_id not in kept:
                doomed.append(Doomed(item, why))
    return ThreadPlan(thread_id, tuple(fates), tuple(doomed))


async def _kept(found: Index, members: Mapping[str, Linked], rule: Rule) -> dict[str, str]:
    """The ids that stay, each with the reason: those that the rule names, and the ancestors that these need."""
    newest = sorted(members, reverse=True)[: rule.newest]
    young = (
        []
        if rule.age_ms is None
        else [
            checkpoint_id
            for checkpoint_id, item in members.items()
            if found.survey.now_ms - item.head.checkpoint.modified_ms < rule.age_ms
        ]
    )
    kept = dict.fromkeys(young, "stored lately") | {
        checkpoint_id: f"newest {number}" if number > 1 else "newest" for number, checkpoint_id in enumerate(newest, 1)
    }
    only_itself = plain(members.values())
    heads = [name for name in kept if not only_itself or (members[name].row.v or 0) < SENDS_IN_VALUES]
    writes = Writes()
    for checkpoint_id in heads:
        for needed, why in (await needed_by(members, checkpoint_id, writes)).items():
            kept.setdefault(needed, why)
    return kept


def _why(rule: Rule) -> str:
    if not rule.newest:
        return "the thread is deleted"
    older = "" if rule.age_ms is None else f", and older than {rule.age_ms / 1000:g} s"
    return f"not among the newest {rule.newest}{older}" if rule.newest > 1 or older else "not the newest"


async def prune(
    layout: Layout,
    thread_id: str,
    rule: Rule,
    describe: Describe,
    *,
    grace_ms: int,
    exclusive: bool,
    uniques: Iterator[str],
) -> Removed:
    """Remove what the rule does not keep, and sweep the thread. Raises `Refused` where it is being copied into."""

    async def decide(found: Index) -> Sequence[Doomed]:
        return (await _plan(found, thread_id, rule)).doomed

    folder = layout.thread(thread_id)
    return await remove_and_sweep(
        layout, folder, describe, decide, grace_ms=grace_ms, exclusive=exclusive, uniques=uniques
    )


@dataclass(frozen=True)
class PrunePlan:
    """What a prune would do, thread by thread. `print` it, or look at `threads`."""

    threads: tuple[ThreadPlan, ...]

    @property
    def bytes(self) -> int:
        """What would be freed at once: the removed checkpoints and their writes. Large values come later."""
        return sum(fate.bytes for planned in self.threads for fate in planned.fates if not fate.stays)

    def __str__(self) -> str:
        fates = [(planned.thread_id, fate) for planned in self.threads for fate in planned.fates]
        table = [("thread", "namespace", "checkpoint", "", "why", "bytes")]
        table += [
            (name, fate.namespace, fate.checkpoint_id, "stays" if fate.stays else "goes", fate.why, f"{fate.bytes:,}")
            for name, fate in fates
        ]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in table]
        gone = sum(not fate.stays for _, fate in fates)
        return "\n".join([*lines, f"{gone} of {len(fates)} checkpoints go, {self.bytes:,} bytes"])
