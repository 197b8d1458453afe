"""Pruning a thread: a plan, which is a value that can be printed, and acting on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from manifests.keys import Layout
from s3_saver.errors import ThreadBusyError
from s3_saver.operations.keep import SENDS_IN_VALUES, Linked, Writes, needed_by
from s3_saver.operations.removing import Doomed, Swept, remove, sweep
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


async def plan(layout: Layout, thread_id: str, rule: Rule, describe: Describe) -> tuple[ThreadPlan, Index]:
    """Decide the fate of every checkpoint of the thread. Rounds: those of `index`, and at most two for writes."""
    found = await index(layout, layout.thread(thread_id), describe)
    if found.survey.of("copying") and rule.newest:
        raise ThreadBusyError(
            f"pruning thread {thread_id!r}: a copy into it has not ended; call copy_thread again to finish it, or "
            "delete_thread to clear it"
        )
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
    return ThreadPlan(thread_id, tuple(fates), tuple(doomed)), found


def by_namespace(found: Index) -> dict[str, dict[str, Linked]]:
    """The surveyed checkpoints by namespace and id."""
    heads = {head.folder: head for head in found.survey.heads}
    members: dict[str, dict[str, Linked]] = {}
    for folder, row in found.rows():
        head = heads[folder]
        members.setdefault(row.namespace, {})[row.checkpoint_id] = Linked(row, head)
    return dict(sorted(members.items()))


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
    # Most threads have no delta channels at all; then a checkpoint needs but itself.
    plain = not any(item.row.snapshots or item.row.counted or item.row.advanced for item in members.values())
    heads = list(kept) if not plain else [name for name in kept if (members[name].row.v or 0) < SENDS_IN_VALUES]
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


async def act(
    layout: Layout,
    planned: ThreadPlan,
    describe: Describe,
    *,
    grace_seconds: float,
    exclusive: bool,
    uniques: Iterator[str],
) -> Swept:
    """Carry a plan out, and sweep the thread."""
    folder = layout.thread(planned.thread_id)
    failed = await remove(folder, planned.doomed, grace_seconds=grace_seconds, uniques=uniques)
    swept = await sweep(layout, folder, describe, grace_seconds=grace_seconds, exclusive=exclusive)
    return Swept(swept.bytes, swept.objects, {**failed, **swept.failed})


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
