"""Removing checkpoints of a thread that lives on, and sweeping what nothing refers to any more.

A removal record is put before each batch of deletions, and no deletion is sent later than a quarter of the grace
period after the removal began: so a sweep, which looks at young records, knows of every reference that ended lately.
Batches go newest first, so what an interrupted removal leaves has its ancestors.

A value object goes when no listed checkpoint needs it, it is itself older than the grace period, and no record younger
than that names it. All ages are the store's own. The order is what makes this safe: first the store's clock, then the
checkpoints to the end, and only then the records. With the records read before the listing, or ages judged later, a
writer that refers to its parent's value can lose it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from manifests.keys import Layout, removal_in, removals_in
from manifests.removals import Removal, decode_removals, encode_removals
from s3_saver.bucket import Deadline, Get, Listed, Put, every
from s3_saver.operations.deleting import delete_keys
from s3_saver.operations.keep import Linked, Writes, needed_by, plain
from s3_saver.operations.listing import all_keys, folder_of
from s3_saver.operations.survey import Describe, Index, Survey, index, read_index, survey

# Checkpoints that one record announces.
_BATCH = 500


class Overdue(Exception):
    """The time for deletions has passed before all were sent: begin again."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """A checkpoint that is to go, and why."""

    linked: Linked
    why: str

    @property
    def removal(self) -> Removal:
        row = self.linked.row
        return Removal(row.namespace, row.checkpoint_id, row.sha256, row.values, self.why)


async def remove(
    thread_folder: str, doomed: Sequence[Doomed], *, deadline: Deadline, uniques: Iterator[str]
) -> dict[str, str]:
    """Remove the checkpoints and then their writes. Returns the keys that stayed. Three rounds a batch of 500.

    Raises `Overdue` where the deadline passed, which counts from before the call: call again for what is left, and
    sweep the writes of what is gone.
    """
    # Ids rise along a thread: newest first leaves the older ones with their ancestors.
    left = sorted(doomed, key=lambda item: item.linked.row.checkpoint_id, reverse=True)
    # Where one is locked, or a right lacks, so mostly are all. With delta channels that must be known before their
    # ancestors go, so the first one goes alone.
    count = _BATCH if plain(item.linked for item in left) else 1
    failed: dict[str, str] = {}
    while left:
        batch, left, count = left[:count], left[count:], _BATCH
        await Put(removal_in(thread_folder, next(uniques)), encode_removals([item.removal for item in batch]))
        stayed = await _delete((item.linked.key for item in batch), deadline)
        # Without their checkpoint writes are invisible. Those of one that stayed stay with it.
        gone = [item for item in batch if item.linked.key not in stayed]
        failed |= stayed | await _delete((key for item in gone for key in item.linked.writes), deadline)
        kept = await _needed_by_those([item.linked for item in batch if item.linked.key in stayed], left)
        failed |= kept
        left = [item for item in left if item.linked.key not in kept]
    return failed


async def _needed_by_those(stayed: Sequence[Linked], left: Sequence[Doomed]) -> dict[str, str]:
    """The keys of what must stay because checkpoints that could not be deleted need it, each with the reason."""
    kept: dict[str, str] = {}
    for item in stayed:
        members = {
            one.row.checkpoint_id: one
            for one in (item, *(doomed.linked for doomed in left))
            if one.row.namespace == item.row.namespace
        }
        needed = await needed_by(members, item.row.checkpoint_id, Writes())
        kept |= {members[name].key: f"needed by {item.key}, which stayed" for name in needed if name in members}
        kept.pop(item.key, None)
    return kept


async def _delete(keys: Iterable[str], deadline: Deadline) -> dict[str, str]:
    deletion = await delete_keys(keys, deadline=deadline)
    if deletion.late:
        raise Overdue
    return dict(deletion.failed)


@dataclass(frozen=True, slots=True)
class _Leftovers:
    """What a sweep may delete, by a thread's listing: all values by name, and what is old enough or without owner."""

    values: dict[str, Listed]
    orphans: list[Listed]
    tombstones: list[Listed]
    marks: list[Listed]

    @classmethod
    def of(cls, layout: Layout, surveyed: Survey, old_ms: int) -> _Leftovers:
        return cls(
            {layout.parse(listed.key).name: listed for listed in surveyed.of("value")},
            _orphans(surveyed),
            *(
                [listed for listed in surveyed.of(kind) if listed.modified_ms < old_ms]
                for kind in ("deleted", "removing")
            ),
        )

    def __bool__(self) -> bool:
        return any((self.values, self.orphans, self.tombstones, self.marks))

    def unneeded(self, needed: Collection[str], old_ms: int, exclusive: bool) -> dict[str, Listed]:
        """The values by name that no checkpoint needs, and that are old enough to go."""
        return {
            name: listed
            for name, listed in self.values.items()
            if name not in needed and (exclusive or listed.modified_ms < old_ms)
        }


def sweepable(found: Index, *, grace_ms: int, exclusive: bool) -> bool:
    """Whether a sweep of the thread may find anything to delete."""
    old = found.survey.now_ms - grace_ms
    left = _Leftovers.of(found.layout, found.survey, old)
    if left.orphans or left.tombstones or left.marks:
        return True
    return bool(left.values) and bool(left.unneeded(_needed(found), old, exclusive))


def _needed(found: Index) -> set[str]:
    """The names of the values that the thread's checkpoints need."""
    return {name for _, row in found.rows(("namespace", "checkpoint_id", "values")) for name in row.values}


async def sweep(
    layout: Layout,
    thread_folder: str,
    describe: Describe,
    *,
    grace_ms: int,
    deadline: Deadline,
    exclusive: bool = False,
) -> dict[str, str]:
    """Delete value objects that nothing needs, and writes whose checkpoint a removal record names.

    Returns the keys that stayed, with the store's reasons. With `exclusive` the caller warrants that no run is active
    on the thread: then no value waits for the grace period.
    Rounds: those of `index`, one for the records' listing, one for the records, one for deletions. Raises `Overdue`.
    """
    # The store's clock and the listing of checkpoints come first, the records after: see above.
    surveyed = await survey(layout, thread_folder)
    old = surveyed.now_ms - grace_ms
    left = _Leftovers.of(layout, surveyed, old)
    if not left:
        return {}
    found = await read_index(layout, surveyed, describe) or await index(layout, thread_folder, describe)
    needed = _needed(found)
    records = await all_keys(removals_in(thread_folder))
    young, removed = await _read_records(layout, thread_folder, records, old, old_too=bool(left.orphans))
    gone = [listed for listed in left.orphans if folder_of(listed.key) in removed]
    unneeded = left.unneeded(needed, old, exclusive)
    gone += [listed for name, listed in unneeded.items() if exclusive or name not in young]
    # While a checkpoint lacks a value, the tombstone says that it was deleted, not that the value was lost.
    gone += left.tombstones if needed <= left.values.keys() else []
    gone += left.marks
    return await _delete((listed.key for listed in gone), deadline)


async def removed_folders(layout: Layout, thread_folder: str) -> set[str]:
    """The folders of all checkpoints that the thread's removal records name."""
    records = await all_keys(removals_in(thread_folder))
    _, removed = await _read_records(layout, thread_folder, records, 0, old_too=True)
    return removed


def _orphans(surveyed: Survey) -> list[Listed]:
    """Writes whose checkpoint is not there: not yet, or not any more."""
    folders = {head.folder for head in surveyed.heads}
    return [listed for listed in surveyed.of("writes") if folder_of(listed.key) not in folders]


async def _read_records(
    layout: Layout, thread_folder: str, records: Sequence[Listed], old: int, *, old_too: bool
) -> tuple[set[str], set[str]]:
    """The values that records younger than the grace period name, and the folders of removed checkpoints."""
    wanted = [listed for listed in records if old_too or listed.modified_ms >= old]
    bodies = await every(Get(listed.key) for listed in wanted)
    young: set[str] = set()
    removed: set[str] = set()
    for listed, body in zip(wanted, bodies, strict=True):
        # Records are never deleted but with their thread: then nothing of it is left to sweep.
        for removal in decode_removals(body.data, key=listed.key) if body is not None else ():
            removed.add(layout.folder_in(thread_folder, removal.namespace, removal.checkpoint_id))
            if listed.modified_ms >= old:
                young.update(removal.values)
    return young, removed
