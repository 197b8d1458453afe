"""Fetching what checkpoints are made of: the object, its large values, its writes, and old checkpoints' sends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from manifests.checkpoints import HEADER_GUESS_BYTES, Header, decode_header, header_length
from manifests.errors import CorruptObjectError
from manifests.keys import Layout
from s3_saver.bucket import Body, Get, both, every
from s3_saver.operations.listing import Head, all_keys
from s3_saver.refs import Ref

# Before this format, LangGraph kept a superstep's sends as writes on the parent checkpoint.
SENDS_IN_VALUES = 4


@dataclass(frozen=True, slots=True)
class Loaded:
    """One checkpoint's bytes, not yet decoded. `sends` are its parent's batches where LangGraph needs them."""

    ref: Ref
    key: str
    header: Header
    body: bytes = field(repr=False)
    values: Mapping[str, bytes] = field(repr=False)
    writes: Mapping[str, bytes] = field(repr=False)
    sends: Mapping[str, bytes] | None = field(repr=False, default=None)

    @property
    def size(self) -> int:
        parts = (self.values, self.writes, self.sends or {})
        return len(self.body) + sum(len(data) for part in parts for data in part.values())


async def load(layout: Layout, thread_id: str, head: Head) -> Loaded | None:
    """Fetch a listed checkpoint; None where it was removed since. One round; one more where it has large values.

    A checkpoint of a format below 4 that has a parent takes one more for the parent's listing and one for its writes,
    and one where the parent is not there.
    """
    body, batches = await both(Get(head.checkpoint.key), fetch(listed.key for listed in head.writes))
    if body is None:
        return None
    return await assemble(layout, thread_id, head.checkpoint.key, body, lambda: _at_hand(batches))


async def fetch(keys: Iterable[str]) -> dict[str, Body | None]:
    """The objects at `keys`, in that order. One round, or none for no keys."""
    keys = list(keys)
    return dict(zip(keys, await every(Get(key) for key in keys), strict=True))


async def _at_hand(fetched: dict[str, Body | None]) -> dict[str, Body | None]:
    return fetched


async def assemble(
    layout: Layout, thread_id: str, key: str, body: Body, batches_of: Callable[[], Awaitable[dict[str, Body | None]]]
) -> Loaded | None:
    """Fetch the rest of a checkpoint whose object is `body`, together with what `batches_of` its writes asks for.

    None where the checkpoint was removed since; raises `CorruptObjectError` where a part of it is lost.
    """
    header = checked_header(layout, body.data, key=key)
    large = [layout.value(thread_id, name) for name in header.values]
    (values, sends), batches = await both(both(fetch(large), _sends(layout, thread_id, header)), batches_of())
    if sends is not None and not sends.complete and await Get(key) is None:
        return None
    missing = next((part for parts in (values, batches) for part, found in parts.items() if found is None), None)
    if missing is not None:
        await _explain(layout, thread_id, key, missing)
        return None
    return Loaded(
        ref=Ref(thread_id, header.namespace, header.checkpoint_id),
        key=key,
        header=header,
        body=body.data,
        values={name: found.data for name, found in zip(header.values, values.values(), strict=True) if found},
        writes={name: found.data for name, found in batches.items() if found},
        sends=None if sends is None else sends.batches,
    )


def checked_header(layout: Layout, data: bytes, *, key: str) -> Header:
    """The header of the object at `key`, when it is that key's: an object moved to another's place is found out."""
    header = decode_header(data, key=key)
    parsed = layout.parse(key)
    expected = layout.checkpoint("", header.namespace, header.checkpoint_id).split("/")[-3:]
    if expected != [f"checkpoint_ns={parsed.namespace}", parsed.folder, key.rpartition("/")[2]]:
        raise CorruptObjectError(
            f"reading {key}: the object says that it is checkpoint {header.checkpoint_id!r} of namespace "
            f"{header.namespace!r}; move it back or delete it"
        )
    return header


async def _explain(layout: Layout, thread_id: str, key: str, missing: str) -> None:
    """Returns where an absent part means that the checkpoint is gone; raises where it means that the part is lost."""
    checkpoint, tombstone = await both(Get(key), Get(layout.deleted(thread_id)))
    if checkpoint is not None and tombstone is None:
        raise CorruptObjectError(
            f"reading {key}: it needs {missing}, which is not there; restore the object or delete the checkpoint"
        )


@dataclass(frozen=True, slots=True)
class _Sends:
    """A parent's batches. Not `complete` where the parent is not there: pruned, or removed just then."""

    batches: Mapping[str, bytes]
    complete: bool


async def _sends(layout: Layout, thread_id: str, header: Header) -> _Sends | None:
    """The parent's batches, where this checkpoint is so old that its sends are among them. Two rounds."""
    version = header.structure.get("v")
    if header.parent_id is None or not isinstance(version, int) or version >= SENDS_IN_VALUES:
        return None
    keys = await all_keys(layout.folder(thread_id, header.namespace, header.parent_id))
    batches = await fetch(listed.key for listed in keys if layout.kind(listed.key) == "writes")
    there = any(layout.kind(listed.key) == "checkpoint" for listed in keys)
    # Without its parent a checkpoint has no sends, unless it is being removed too: that is for the caller to see.
    return _Sends({key: found.data for key, found in batches.items() if found}, there and all(batches.values()))


async def read_header(layout: Layout, key: str) -> Header | None:
    """The header of the checkpoint object at `key`, None where it was removed. One round, two for a long header."""
    found = await read_head(key)
    return None if found is None else checked_header(layout, found.data, key=key)


async def read_head(key: str) -> Body | None:
    """The first bytes of a checkpoint object, its header among them; None where it was removed."""
    found = await Get(key, first_bytes=HEADER_GUESS_BYTES)
    if found is None or found.whole or header_length(found.data, key=key) <= len(found.data):
        return found
    return await Get(key)
