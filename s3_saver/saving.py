"""How a checkpoint gets stored: find the parent's values, compose, put, and settle a conflict.

Unchanged values come from the parent's entries, so they are neither serialized nor uploaded again. Where the parent
is in memory that takes no request; else it is read once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol

from manifests import checkpoints as format
from manifests.checkpoints import Typed
from manifests.keys import run_part
from manifests.values import resolver, value_of
from s3_saver import comparing, reading, records
from s3_saver.bases import bases_of
from s3_saver.bucket import Body, Deadline, Get, Instant, Late, Listed, Now, Put, Stored, Work
from s3_saver.cache import Beside
from s3_saver.errors import ArchiveError, CheckpointConflictError, S3SaverError, StoreUnavailableError
from s3_saver.operations.indexing import EVERY, write_index
from s3_saver.operations.load import Loaded, assemble, checked_header, fetch
from s3_saver.operations.put import get_parent, put, run_line
from s3_saver.records import Composed, Draft
from s3_saver.refs import Ref
from s3_saver.settings import GRACE
from s3_saver.shared import Shared, uniques

logger = logging.getLogger(__name__)

# Each attempt beyond the first means that the parent's load had become too old, or that a checkpoint vanished.
_ATTEMPTS_MAX = 5
_LOAD_AGE_MAX_SECONDS = GRACE.total_seconds() / 2


@dataclass(frozen=True, slots=True)
class Parent:
    """A parent's object, when the request began that showed it to be there, and what went up beside it."""

    checkpoint: format.Checkpoint
    loaded_at: Instant
    beside: Mapping[str, Beside] = field(default_factory=dict)

    def fresh(self, now: Instant) -> bool:
        """Whether a reference to its value objects is safe: they outlive their last reference by the grace."""
        return not self.checkpoint.header.values or self.loaded_at.seconds_until(now) <= _LOAD_AGE_MAX_SECONDS


def remembered_parent(shared: Shared, child: Ref, parent_id: str | None) -> Parent | None:
    """The parent, where its bytes are in memory. No request."""
    if parent_id is None:
        return None
    key = shared.layout.checkpoint(child.thread_id, child.namespace, parent_id)
    found = shared.cache.get(key)
    if found is None:
        return None
    return Parent(format.decode_checkpoint(found.body, key=key), found.loaded_at, found.beside)


async def save(
    shared: Shared, serde: SerializerProtocol, draft: Draft, parent: Parent | None, given: Mapping[str, Any]
) -> None:
    """Store the drafted checkpoint. `given` are the caller's live values, used only where nothing else is left.

    One round where the parent and its large values are in memory, and thread and run are marked. One more for the
    parent, one for values to build on, one for what must be there before. Raises `CheckpointConflictError` where a
    checkpoint of this id has other content.
    """
    key = shared.layout.checkpoint(draft.ref.thread_id, draft.ref.namespace, draft.ref.checkpoint_id or "")
    for _ in range(_ATTEMPTS_MAX):
        draft, parent = await _with_parent(shared, serde, draft, parent, given)
        began = await Now()
        beside = {name: item for name, item in parent.beside.items() if _young(item, began)} if parent else {}
        composed = await _compose(shared, draft, parent, beside)
        stored, besides_stored = await put(
            key,
            composed.body,
            before=_before(shared, draft, composed),
            beside=[
                Put(shared.layout.value(draft.ref.thread_id, name), data) for name, data in composed.beside.items()
            ],
            deadline=_deadline(composed, parent, beside, began),
        )
        if isinstance(stored, Stored):
            _mark(shared, draft)
            shared.cache.remember(
                key, composed.body, began, _remembered(shared, draft, composed, began, besides_stored)
            )
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
    names = parent.header.values
    large = await fetch(shared.layout.value(draft.ref.thread_id, name) for name in names)
    there = {name: found.data for name, found in zip(names, large.values(), strict=True) if found}
    resolve = resolver(there, key=f"the parent {parent.header.checkpoint_id!r}")
    values = dict(draft.values)
    for name, entry in entries.items():
        if entry is None:
            continue
        if there.keys() >= set(entry.values):
            raw = value_of(parent, name, resolve, key=f"the parent {parent.header.checkpoint_id!r}")
            values[name] = Typed(entry.type, raw)
        elif name in given:
            values[name] = records.dump(serde, given[name])
    kept = frozenset(name for name, entry in entries.items() if entry is not None and name in parent.header.snapshots)
    return replace(draft, values=values, snapshots=draft.snapshots | kept)


def _young(beside: Beside, now: Instant) -> bool:
    return beside.put_at.seconds_until(now) <= _LOAD_AGE_MAX_SECONDS


def _deadline(
    composed: Composed, parent: Parent | None, beside: Mapping[str, Beside], began: Instant
) -> Deadline | None:
    """When the checkpoint must be stored: value objects that no stored checkpoint refers to are swept in the end.

    Those of the parent are, when that is removed; those that went up beside it, and our own, until the checkpoint is
    stored. A process may sleep for hours between two requests.
    """
    since = [began] if composed.values else []
    since += [item.put_at for item in beside.values() if item.names[0] in composed.refers]
    since += [parent.loaded_at] if parent and composed.refers else []
    if not since:
        return None
    return Deadline(max(since, key=lambda instant: instant.seconds_until(began)), _LOAD_AGE_MAX_SECONDS)


async def _compose(shared: Shared, draft: Draft, parent: Parent | None, beside: Mapping[str, Beside]) -> Composed:
    limit = shared.settings.inline_limit
    size = sum(len(typed.data) for typed in draft.values.values())
    above = None
    if parent is not None:
        size += len(parent.checkpoint.payload)
        above = records.Parent(parent.checkpoint, await bases_of(shared, draft, parent.checkpoint, beside))
    return await Work(lambda: records.compose(draft, above, inline_limit=limit, names=uniques()), size)


def _remembered(
    shared: Shared, draft: Draft, composed: Composed, began: Instant, besides_stored: bool
) -> dict[str, Beside]:
    """Keep the values of new value objects. Those that went up beside the checkpoint, by channel."""
    beside: dict[str, Beside] = {}
    for channel, base in composed.bases.items():
        if base.names[0] in composed.values or besides_stored:
            shared.cache.keep_value(shared.layout.value(draft.ref.thread_id, base.names[0]), base.raw)
        if base.names[0] in composed.beside and besides_stored:
            beside[channel] = Beside(base.names, began)
    return beside


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
        await write_index(shared.layout, draft.ref, rows, describe, next(uniques()), ordered=shared.ordered)
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
    channels = composed.checkpoint.header.channels
    wanted = [name for channel in unlike for name in channels[channel].values if name not in composed.values]
    wanted = list(dict.fromkeys(wanted))
    ours = await fetch(shared.layout.value(draft.ref.thread_id, name) for name in wanted)
    values = {name: found.data for name, found in zip(wanted, ours.values(), strict=True) if found}
    # Where large values went with a deleted thread, digests are all that is left to compare.
    readable = not unlike or (whole is not None and len(values) == len(ours))
    if readable and await Work(
        lambda: comparing.same_content(serde, composed, theirs, values, shared.cache), _size(composed, theirs)
    ):
        return True
    raise CheckpointConflictError(
        f"storing {key}: checkpoint {draft.ref.checkpoint_id!r} of thread {draft.ref.thread_id!r}, namespace "
        f"{draft.ref.namespace!r}, is stored already with other content; nothing was changed; give new content a new id"
    )


def _size(composed: Composed, theirs: Loaded) -> int:
    return len(composed.checkpoint.payload) + theirs.size
