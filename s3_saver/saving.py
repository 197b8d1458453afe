"""How a checkpoint gets stored: find the parent's values, compose, put, and settle a conflict.

Unchanged values come from the parent's entries, so they are neither serialized nor uploaded again. Where the parent
is in memory that takes no request; else it is read once.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from manifests import checkpoints as format
from manifests.checkpoints import Typed
from manifests.keys import run_part
from s3_saver import comparing, reading, records
from s3_saver.bucket import Body, Deadline, Get, Instant, Late, Listed, Now, Put, Stored, Work
from s3_saver.errors import ArchiveError, CheckpointConflictError, S3SaverError, StoreUnavailableError
from s3_saver.operations.indexing import EVERY, write_index
from s3_saver.operations.load import Loaded, assemble, checked_header, fetch
from s3_saver.operations.put import get_parent, put, run_line
from s3_saver.records import Composed, Draft
from s3_saver.refs import Ref
from s3_saver.settings import GRACE
from s3_saver.shared import Shared

logger = logging.getLogger(__name__)

# Each attempt beyond the first means that the parent's load had become too old, or that a checkpoint vanished.
_ATTEMPTS_MAX = 5
_LOAD_AGE_MAX_SECONDS = GRACE.total_seconds() / 2


@dataclass(frozen=True, slots=True)
class Parent:
    """A parent's object, and when the request began that showed it to be there."""

    checkpoint: format.Checkpoint
    loaded_at: Instant

    def fresh(self, now: Instant) -> bool:
        """Whether a reference to its value objects is safe: they outlive their last reference by the grace."""
        return not self.checkpoint.header.values or self.loaded_at.seconds_until(now) <= _LOAD_AGE_MAX_SECONDS


def remembered_parent(shared: Shared, child: Ref, parent_id: str | None) -> Parent | None:
    """The parent, where its bytes are in memory. No request."""
    if parent_id is None:
        return None
    key = shared.layout.checkpoint(child.thread_id, child.namespace, parent_id)
    found = shared.cache.get(key)
    return None if found is None else Parent(format.decode_checkpoint(found.body, key=key), found.loaded_at)


async def save(
    shared: Shared, serde: SerializerProtocol, draft: Draft, parent: Parent | None, given: Mapping[str, Any]
) -> None:
    """Store the drafted checkpoint. `given` are the caller's live values, used only where nothing else is left.

    One round where the parent is in memory, nothing is large and the thread and run are marked. One more for each of
    these. Raises `CheckpointConflictError` where a checkpoint of this id has other content.
    """
    key = shared.layout.checkpoint(draft.ref.thread_id, draft.ref.namespace, draft.ref.checkpoint_id or "")
    for _ in range(_ATTEMPTS_MAX):
        draft, parent = await _with_parent(shared, serde, draft, parent, given)
        composed = await _compose(shared, draft, parent)
        began = await Now()
        # Value objects that no checkpoint refers to are swept in the end: those of the parent, when that is removed,
        # and our own, until the checkpoint is stored. A process may sleep for hours between two requests.
        since = parent.loaded_at if parent and composed.refers else began
        stored = await put(
            key,
            composed.body,
            before=_before(shared, draft, composed),
            deadline=Deadline(since, _LOAD_AGE_MAX_SECONDS) if composed.refers or composed.values else None,
        )
        if isinstance(stored, Stored):
            _mark(shared, draft)
            shared.cache.remember(key, composed.body, began)
            await _index(shared, serde, draft, composed, key, stored)
            return
        if isinstance(stored, Late):
            continue
        if await _settled(shared, serde, draft, composed, key, stored):
            shared.cache.remember(key, stored.data, began)
            return
    raise StoreUnavailableError(f"storing {key}: no success in {_ATTEMPTS_MAX} attempts; try again")


async def _with_parent(
    shared: Shared, serde: SerializerProtocol, draft: Draft, parent: Parent | None, given: Mapping[str, Any]
) -> tuple[Draft, Parent | None]:
    """The draft and a parent that it may refer to. Reads the parent where it is not known, or known for too long."""
    if draft.parent_id is None:
        return draft, None
    now = await Now()
    if parent is not None and parent.fresh(now):
        return draft, parent
    ref = Ref(draft.ref.thread_id, draft.ref.namespace, draft.parent_id)
    key = shared.layout.checkpoint(ref.thread_id, ref.namespace, draft.parent_id)
    body = await get_parent(shared.layout, ref)
    found = None if body is None else format.decode_checkpoint(body.data, key=key)
    if body is not None and found is not None and (parent is None or found.sha256 == parent.checkpoint.sha256):
        shared.cache.remember(key, body.data, now)
        return draft, Parent(found, now)
    if parent is None:
        return draft, None
    # Removed while we knew it, or another one is in its place. What it held for us is stored anew, from the nearest
    # place that still has it.
    return await _salvage(shared, serde, draft, parent.checkpoint, given), None


async def _salvage(
    shared: Shared, serde: SerializerProtocol, draft: Draft, parent: format.Checkpoint, given: Mapping[str, Any]
) -> Draft:
    versions = draft.structure.get("channel_versions") or {}
    entries = {name: records.inherited(parent, name, versions, draft.changed) for name in versions}
    large = await fetch(shared.layout.value(draft.ref.thread_id, name) for name in parent.header.values)
    values = dict(draft.values)
    for name, entry in entries.items():
        if entry is None:
            continue
        key = entry.value and shared.layout.value(draft.ref.thread_id, entry.value)
        found = large.get(key) if key else None
        if key is None:
            values[name] = Typed(entry.type, parent.inline(entry))
        elif found is not None:
            values[name] = Typed(entry.type, format.decode_value(found.data, key=key))
        elif name in given:
            values[name] = records.dump(serde, given[name])
    kept = frozenset(name for name, entry in entries.items() if entry is not None and name in parent.header.snapshots)
    return replace(draft, values=values, snapshots=draft.snapshots | kept)


async def _compose(shared: Shared, draft: Draft, parent: Parent | None) -> Composed:
    checkpoint = None if parent is None else parent.checkpoint
    limit = shared.settings.inline_limit
    size = sum(len(typed.data) for typed in draft.values.values()) + (len(checkpoint.payload) if checkpoint else 0)
    return await Work(lambda: records.compose(draft, checkpoint, inline_limit=limit, names=_names()), size)


def _names() -> Iterator[str]:
    """Names for value objects: never one twice, so no object is ever overwritten."""
    while True:
        yield uuid.uuid4().hex


def _before(shared: Shared, draft: Draft, composed: Composed) -> list[Put]:
    """What must be there before the checkpoint is: the thread's name, the run's markers, large values."""
    layout, thread_id = shared.layout, draft.ref.thread_id
    puts = [Put(layout.value(thread_id, name), data) for name, data in composed.values.items()]
    folder = layout.thread(thread_id)
    name = layout.name(thread_id)
    # What we once put may be gone: where a thread begins, another process may have deleted an older one of this id.
    begins = draft.parent_id is None and not draft.ref.namespace
    if name is not None and (begins or not shared.cache.marked(folder, None)):
        puts.append(Put(name, thread_id.encode()))
    run = _run(draft)
    if run is not None and (begins or not shared.cache.marked(folder, run)):
        line = run_line(layout.thread_part(folder), run)
        puts += [Put(layout.marker(thread_id, run), line), Put(layout.run(thread_id, run), line)]
    return puts


async def _index(
    shared: Shared, serde: SerializerProtocol, draft: Draft, composed: Composed, key: str, stored: Stored
) -> None:
    """Keep the checkpoint's row, and index the last ones where it is their turn."""
    describe = reading.describer(serde)
    header, size = composed.checkpoint.header, len(composed.body)
    row = describe(header, Listed(key, size, stored.etag, 0), Body(composed.body, size, stored.etag))
    rows = shared.cache.add_row(shared.layout.namespace(draft.ref.thread_id, draft.ref.namespace), row, EVERY)
    if not header.depth or header.depth % EVERY:
        return
    try:
        await write_index(shared.layout, draft.ref, rows, describe, uuid.uuid4().hex, ordered=shared.ordered)
    except (S3SaverError, ArchiveError) as error:
        # The checkpoint is stored, which is what was asked. A reader indexes what is missing.
        logger.warning("the manifest of thread %r was not extended: %s", draft.ref.thread_id, error)


def _run(draft: Draft) -> str | None:
    """How the run stands in keys. Where the serializer encrypts metadata, its id must not be readable there."""
    return None if draft.run_id is None else run_part(draft.run_id, hidden=draft.metadata.encrypted)


def _mark(shared: Shared, draft: Draft) -> None:
    folder = shared.layout.thread(draft.ref.thread_id)
    shared.cache.mark(folder, None)
    shared.cache.mark(folder, _run(draft))


async def _settled(
    shared: Shared, serde: SerializerProtocol, draft: Draft, composed: Composed, key: str, stored: Body
) -> bool:
    """Whether the checkpoint that is there is ours; False where it vanished meanwhile. Raises where it is another."""
    whole = await assemble(shared.layout, draft.ref.thread_id, key, stored, lambda: fetch(()))
    if whole is None and await Get(key) is None:
        return False
    header = checked_header(shared.layout, stored.data, key=key)
    theirs = whole or Loaded(draft.ref, key, header, stored.data, {}, {})
    unlike = comparing.unlike(composed, header)
    wanted = [composed.checkpoint.header.channels[name].value for name in unlike]
    ours = await fetch(
        shared.layout.value(draft.ref.thread_id, name) for name in wanted if name and name not in composed.values
    )
    values = {
        found_key.rpartition("/")[2].removesuffix(".bin"): found.data for found_key, found in ours.items() if found
    }
    # Where large values went with a deleted thread, digests are all that is left to compare.
    readable = not unlike or (whole is not None and len(values) == len(ours))
    if readable and await Work(
        lambda: comparing.same_content(serde, composed, theirs, values), _size(composed, theirs)
    ):
        return True
    raise CheckpointConflictError(
        f"storing {key}: checkpoint {draft.ref.checkpoint_id!r} of thread {draft.ref.thread_id!r}, namespace "
        f"{draft.ref.namespace!r}, is stored already with other content; nothing was changed; give new content a new id"
    )


def _size(composed: Composed, theirs: Loaded) -> int:
    return len(composed.checkpoint.payload) + theirs.size
