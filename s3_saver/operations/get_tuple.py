"""One checkpoint: by its id, or the newest of its namespace."""

from __future__ import annotations

from manifests.keys import Layout, checkpoint_in
from s3_saver.bucket import Get, both
from s3_saver.errors import StoreUnavailableError
from s3_saver.operations.listing import all_keys, newest_first
from s3_saver.operations.load import Loaded, assemble, fetch, load
from s3_saver.refs import Ref

# Each attempt lists again because the newest checkpoint was removed after it was listed.
_ATTEMPTS_MAX = 20


async def get_tuple(layout: Layout, ref: Ref, *, ordered: bool = True) -> Loaded | None:
    """Fetch the checkpoint, or None where there is none. Two rounds; one more for large values of the newest.

    By its id one more where it appears, or is removed, just then.
    """
    if ref.checkpoint_id is not None:
        return await _by_id(layout, ref, ref.checkpoint_id)
    for _ in range(_ATTEMPTS_MAX):
        listed = await newest_first(layout, layout.namespace(ref.thread_id, ref.namespace), count=1, ordered=ordered)
        if not listed.heads:
            return None
        loaded = await load(layout, ref.thread_id, listed.heads[0])
        if loaded is not None:
            return loaded
        if await Get(layout.deleted(ref.thread_id)) is not None:
            return None
    raise StoreUnavailableError(
        f"reading the newest checkpoint of thread {ref.thread_id!r}: it was removed {_ATTEMPTS_MAX} times while it "
        "was read; try again when the prune or deletion has ended"
    )


async def _by_id(layout: Layout, ref: Ref, checkpoint_id: str) -> Loaded | None:
    folder = layout.folder(ref.thread_id, ref.namespace, checkpoint_id)
    key = checkpoint_in(folder)
    body, listed = await both(Get(key), all_keys(folder))
    if body is not None and all(item.key != key for item in listed):
        # It appeared, or was removed, between the two answers; then its writes may have been removed with it.
        listed = await all_keys(folder)
        body = body if any(item.key == key for item in listed) else None
    if body is None:
        return None
    batches = [item.key for item in listed if layout.kind(item.key) == "writes"]
    return await assemble(layout, ref.thread_id, key, body, lambda: fetch(batches))
