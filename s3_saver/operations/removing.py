"""Removing checkpoints of a thread that lives on, and sweeping what nothing refers to any more.

A removal record is put before each batch of deletions, and the batch is deleted within a quarter of the grace period,
or a new record is put: so a sweep, which looks at young records, knows of every reference that ended lately. Batches
go newest first, so what an interrupted removal leaves has its ancestors.

A value object goes when no listed checkpoint needs it, it is itself older than the grace period, and no record younger
than that names it. All ages are the store's own. The order is what makes this safe: first the store's clock, then the
checkpoints to the end, and only then the records. With the records read before the listing, or ages judged later, a
writer that refers to its parent's value can lose it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from manifests.keys import Layout, removal_in, removals_in
from manifests.removals import Removal, decode_removals, encode_removals
from s3_saver.bucket import Deadline, Get, Listed, Now, Put, every
from s3_saver.errors import StoreUnavailableError
from s3_saver.operations.deleting import delete_keys
from s3_saver.operations.keep import Linked
from s3_saver.operations.listing import all_keys, folder_of
from s3_saver.operations.survey import Describe, Survey, index, read_index, survey

# Checkpoints that one record announces.
_BATCH = 500
_ATTEMPTS_MAX = 5


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
    thread_folder: str, doomed: Sequence[Doomed], *, grace_seconds: float, uniques: Iterator[str]
) -> dict[str, str]:
    """Remove the checkpoints and then their writes. Returns the keys that stayed. Three rounds a batch of 500."""
    # Ids rise along a thread: newest first leaves the older ones with their ancestors.
    ordered = sorted(doomed, key=lambda item: item.linked.row.checkpoint_id, reverse=True)
    failed: dict[str, str] = {}
    for start in range(0, len(ordered), _BATCH):
        failed |= await _remove_batch(thread_folder, ordered[start : start + _BATCH], grace_seconds, uniques)
    return failed


async def _remove_batch(
    thread_folder: str, batch: Sequence[Doomed], grace_seconds: float, uniques: Iterator[str]
) -> dict[str, str]:
    for _ in range(_ATTEMPTS_MAX):
        deadline = Deadline(await Now(), grace_seconds / 4)
        record = encode_removals([item.removal for item in batch])
        await Put(removal_in(thread_folder, next(uniques)), record)
        deletion = await delete_keys((item.linked.key for item in batch), deadline=deadline)
        if not deletion.late:
            # Without their checkpoint writes are invisible. Those of one that stayed stay with it.
            gone = [item for item in batch if item.linked.key not in deletion.failed]
            writes = await delete_keys(key for item in gone for key in item.linked.writes)
            return {**deletion.failed, **writes.failed}
    raise StoreUnavailableError(f"deleting below {thread_folder}: each batch took too long; try again")


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep deleted: bytes and objects, and the keys that stayed, with the store's reasons."""

    bytes: int
    objects: int
    failed: dict[str, str]


async def sweep(
    layout: Layout, thread_folder: str, describe: Describe, *, grace_seconds: float, exclusive: bool = False
) -> Swept:
    """Delete value objects that nothing needs, and writes whose checkpoint a removal record names.

    With `exclusive` the caller warrants that no run is active on the thread: then no value waits for the grace period.
    Rounds: those of `index`, one for the records' listing, one for the records, two for deletions.
    """
    # The store's clock and the listing of checkpoints come first, the records after: see above.
    surveyed = await survey(layout, thread_folder)
    if surveyed.of("copying"):
        # Values come before the checkpoints that need them.
        return Swept(0, 0, {})
    old = surveyed.now_ms - round(grace_seconds * 1000)
    orphans = _orphans(surveyed)
    values = {layout.parse(listed.key).name: listed for listed in surveyed.of("value")}
    tombstones = [listed for listed in surveyed.of("deleted") if listed.modified_ms < old]
    if not values and not orphans and not tombstones:
        return Swept(0, 0, {})
    found = await read_index(layout, surveyed, describe) or await index(layout, thread_folder, describe)
    needed = {name for _, row in found.rows(("namespace", "checkpoint_id", "values")) for name in row.values}
    records = await all_keys(removals_in(thread_folder))
    young, removed = await _read_records(layout, thread_folder, records, old, old_too=bool(orphans))
    gone = [listed for listed in orphans if folder_of(listed.key) in removed]
    gone += [
        listed
        for name, listed in values.items()
        if name not in needed and (exclusive or (listed.modified_ms < old and name not in young))
    ]
    # While a checkpoint lacks a value, the tombstone says that it was deleted, not that the value was lost.
    gone += tombstones if needed <= values.keys() else []
    deletion = await delete_keys(listed.key for listed in gone)
    freed = sum(listed.size for listed in gone if listed.key not in deletion.failed)
    return Swept(freed, len(gone), dict(deletion.failed))


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
