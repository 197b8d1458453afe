"""Removing a thread. Checkpoints go first, so that nothing visible ever lacks a part, then writes, then values."""

from __future__ import annotations

import json

from manifests.keys import Layout
from s3_saver.bucket import Listed, Put
from s3_saver.errors import StoreUnavailableError
from s3_saver.operations.deleting import delete_keys, refuse_leftovers
from s3_saver.operations.listing import all_keys, folder_of, keys_since

# Each sweep removes what arrived since the one before. A run that writes on for longer is stopped first.
_SWEEPS_MAX = 20

_ORDER = ("checkpoint", "writes", "value", "marker", "run")


async def delete_thread(layout: Layout, thread_id: str, *, grace_ms: int) -> None:
    """Remove every object of the thread but a tombstone, which a later call removes when it is older than the grace.

    A thread that is not there is left alone. Rounds: the pages of the listing twice, one for the tombstone, and at
    most six for deletions. Killed at any request, it can be called again.
    """
    tombstone = layout.deleted(thread_id)
    folder = layout.thread(thread_id)
    listed, now_ms = await keys_since(folder)
    if all(item.key == tombstone for item in listed):
        if listed and now_ms - listed[0].modified_ms > grace_ms:
            refuse_leftovers((await delete_keys([tombstone])).failed, f"deleting {folder}")
        return
    # From here on a value that is missing means that its thread was deleted, not that it was lost.
    await Put(tombstone, json.dumps({"format": 1, "deleted_ms": now_ms}).encode() + b"\n")
    for _ in range(_SWEEPS_MAX):
        await _sweep(layout, thread_id, [item for item in listed if item.key != tombstone])
        listed = await all_keys(folder)
        if all(item.key == tombstone for item in listed):
            return
    raise StoreUnavailableError(
        f"deleting {folder}: something stores there as fast as it is deleted; end the runs of the thread, then delete "
        "again"
    )


async def _sweep(layout: Layout, thread_id: str, listed: list[Listed]) -> None:
    kinds: dict[str, list[str]] = {kind: [] for kind in (*_ORDER, "")}
    for item in listed:
        kind = layout.kind(item.key)
        kinds[kind if kind in _ORDER else ""].append(item.key)
    # Markers lie outside of the thread's folder and are found through its runs, which therefore go last.
    kinds["marker"] = [layout.marker(thread_id, layout.parse(key).name) for key in kinds["run"]]
    where = f"deleting {layout.thread(thread_id)}"
    checkpoints = await delete_keys(kinds["checkpoint"])
    # A checkpoint that is there still has its writes and values.
    stayed = {folder_of(key) for key in checkpoints.failed}
    writes = await delete_keys(key for key in kinds["writes"] if folder_of(key) not in stayed)
    refuse_leftovers({**checkpoints.failed, **writes.failed}, where)
    for kind in ("value", "marker", "run", ""):
        deletion = await delete_keys(kinds[kind])
        refuse_leftovers(deletion.failed, where)
