"""What the large values of a new checkpoint can build on: its parent's, and those that went up beside the parent."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from manifests import checkpoints as format
from manifests.errors import CorruptObjectError
from s3_saver import reading, records
from s3_saver.bucket import Work
from s3_saver.cache import Beside
from s3_saver.operations.load import fetch
from s3_saver.placing import Base, patchable
from s3_saver.records import Draft
from s3_saver.shared import Shared

logger = logging.getLogger(__name__)

Bases = Mapping[str, Sequence[Base]]


async def bases_of(shared: Shared, draft: Draft, parent: format.Checkpoint, beside: Mapping[str, Beside]) -> Bases:
    """For channels of the draft the stored values to build on, nearest first. One round, or none where remembered.

    What went up `beside` the parent is used only while it is remembered: no digest proves what is read of it.
    """
    near = {
        channel: _remembered(shared, draft, item.names)
        for channel, item in beside.items()
        if _stays(draft, parent, channel) or _grows(shared, draft, parent, channel)
    }
    wanted = {
        channel: entry.values
        for channel, entry in parent.header.channels.items()
        if entry.values and not near.get(channel) and _grows(shared, draft, parent, channel)
    }
    key_of = partial(shared.layout.value, draft.ref.thread_id)
    names = dict.fromkeys(name for values in wanted.values() for name in values)
    missing = [name for name in names if shared.cache.value(key_of(name)) is None]
    if missing:
        fetched = await fetch(key_of(name) for name in missing)
        objects = {name: found.data for name, found in zip(missing, fetched.values(), strict=True) if found}
        key = shared.layout.checkpoint(draft.ref.thread_id, draft.ref.namespace, parent.header.checkpoint_id)
        await Work(lambda: _learn(shared, parent, key, wanted, objects), sum(map(len, objects.values())))
    return near | {channel: _remembered(shared, draft, values) for channel, values in wanted.items()}


def _stays(draft: Draft, parent: format.Checkpoint, channel: str) -> bool:
    versions = draft.structure.get("channel_versions") or {}
    return records.inherited(parent, channel, versions, draft.changed) is not None


def _grows(shared: Shared, draft: Draft, parent: format.Checkpoint, channel: str) -> bool:
    """Whether the channel has a new value that could be a patch against the parent's."""
    typed = draft.values.get(channel)
    return (
        typed is not None
        and len(typed.data) > shared.settings.inline_limit
        and patchable(typed)
        and typed.type == parent.header.channels[channel].type
        and not _stays(draft, parent, channel)
    )


def _remembered(shared: Shared, draft: Draft, names: Sequence[str]) -> list[Base]:
    """A value and what it is a patch against; nothing where one of them is not remembered."""
    raws = [shared.cache.value(shared.layout.value(draft.ref.thread_id, name)) for name in names]
    found = [Base(tuple(names[number:]), raw) for number, raw in enumerate(raws) if raw is not None]
    return found if len(found) == len(names) else []


def _learn(
    shared: Shared,
    parent: format.Checkpoint,
    key: str,
    wanted: Mapping[str, Sequence[str]],
    objects: Mapping[str, bytes],
) -> None:
    """Remember what the parent's channels are made of."""
    for channel in wanted:
        try:
            reading.value_from(parent, channel, objects, shared.cache, key=key)
        except (KeyError, CorruptObjectError) as error:
            # The new value is whole without it, and is stored so; who reads the parent is told.
            logger.warning("channel %r is stored whole, since its last value cannot be read: %s", channel, error)
