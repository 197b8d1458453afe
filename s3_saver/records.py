"""LangGraph's objects to records of the archive: what a put is given is serialized and laid out here.

Serializers are arguments, never kept: LangGraph assigns `saver.serde` after a saver was made.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from manifests import checkpoints as format
from manifests.checkpoints import STRUCTURE, Entry, Header, Typed
from manifests.writes import WriteRow
from s3_saver.configs import checkpoint_id_of, ref_of, text_of
from s3_saver.placing import Base, Placed, place
from s3_saver.refs import Ref
from s3_saver.settings import MetadataFilter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint as the caller gave it, serialized. `values` lacks those that the parent is known to hold.

    `ref` names the checkpoint, `parent_id` its parent; `changed` are the channels in LangGraph's `new_versions`,
    `snapshots` those whose given value is a delta channel's snapshot, `counted` those that the metadata counts.
    """

    ref: Ref
    parent_id: str | None
    structure: Mapping[str, Any]
    extra: Mapping[str, Typed]
    metadata: Typed
    metadata_thread_id: bool
    run_id: str | None
    changed: frozenset[str]
    values: Mapping[str, Typed]
    snapshots: frozenset[str]
    counted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Composed:
    """A checkpoint object ready to be put: its record and bytes, and value objects by name.

    `values` go before it. `beside` may go up with it: it does not refer to them, but the next one may. `bases` are what
    the next one builds on, by channel, where that is new. `refers` lists the parent's value objects that it needs.
    """

    checkpoint: format.Checkpoint
    body: bytes
    values: Mapping[str, bytes]
    beside: Mapping[str, bytes]
    bases: Mapping[str, Base]
    refers: frozenset[str]


def dump(serde: SerializerProtocol, value: Any) -> Typed:
    kind, data = serde.dumps_typed(value)
    # Bytes-like values may be the caller's own buffer, which may change.
    return Typed(kind, bytes(data))


def draft_of(
    serde: SerializerProtocol,
    config: RunnableConfig,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    new_versions: ChannelVersions,
    *,
    parent: format.Checkpoint | None,
    keep: MetadataFilter | None,
) -> Draft:
    """Serialize all that `put` was given. Nothing waits here: the caller's objects may change as soon as we wait."""
    given = ref_of(config)
    ref = Ref(given.thread_id, given.namespace, checkpoint_id_of(checkpoint.get("id")))
    values = cast(Mapping[str, Any], checkpoint.get("channel_values") or {})
    versions = checkpoint.get("channel_versions") or {}
    for name in (*values, *versions):
        text_of("a channel's name", name)
    merged = _metadata(config, metadata, keep)
    own = merged.get("thread_id") == ref.thread_id
    if own:
        del merged["thread_id"]
    changed = frozenset(new_versions)
    run_id = merged.get("run_id")
    return Draft(
        ref=ref,
        parent_id=given.checkpoint_id,
        structure={name: _structure(value) for name, value in checkpoint.items() if name in STRUCTURE},
        extra={
            name: dump(serde, value)
            for name, value in checkpoint.items()
            if name not in STRUCTURE and name not in ("id", "channel_values")
        },
        metadata=dump(serde, merged),
        metadata_thread_id=own,
        run_id=text_of("run_id", str(run_id)) if run_id is not None else None,
        changed=changed,
        values={
            name: dump(serde, value)
            for name, value in values.items()
            if inherited(parent, name, versions, changed) is None
        },
        snapshots=frozenset(name for name, value in values.items() if isinstance(value, _DeltaSnapshot)),
        counted=_counted(merged),
    )


# What LangGraph calls its delta counters, and called them before their release.
_COUNTERS = ("counters_since_delta_snapshot", "delta_updates_since_snapshot")


def _counted(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """The delta channels that the metadata counts updates of."""
    found = (metadata.get(name) for name in _COUNTERS)
    names = {str(name) for counters in found if isinstance(counters, Mapping) for name in counters}
    return tuple(sorted(names))


def _metadata(config: RunnableConfig, metadata: CheckpointMetadata, keep: MetadataFilter | None) -> dict[str, Any]:
    merged = cast(dict[Any, Any], get_checkpoint_metadata(config, metadata))
    if keep is None:
        return merged
    dropped = [name for name in merged if isinstance(name, str) and not keep(name)]
    for name in dropped:
        _warn_dropped(name)
        del merged[name]
    return merged


_warned: set[str] = set()


def _warn_dropped(name: str) -> None:
    if name not in _warned and len(_warned) < 1000:
        _warned.add(name)
        logger.warning(
            "metadata key %r is not stored, since metadata_filter drops it; see S3Saver(metadata_filter=)", name
        )


def _structure(value: Any) -> Any:
    """A copy in plain containers, so that what is packed later is what was given."""
    if isinstance(value, Mapping):
        return {str(key): _structure(item) for key, item in value.items()}
    return list(value) if isinstance(value, list | tuple) else value


def inherited(
    parent: format.Checkpoint | None, name: str, versions: Mapping[str, Any], changed: frozenset[str]
) -> Entry | None:
    """The parent's entry for a channel that did not change since.

    Versions are compared, since a checkpoint may be put with another one's parent (`update_state(…, "__copy__")`).
    """
    if parent is None or name in changed or name not in versions:
        return None
    if parent.header.channel_versions.get(name) != versions[name]:
        return None
    return parent.header.channels.get(name)


@dataclass(frozen=True, slots=True)
class Parent:
    """The checkpoint that a new one builds on, and for its channels the stored values to build on, nearest first."""

    checkpoint: format.Checkpoint
    bases: Mapping[str, Sequence[Base]]


def compose(draft: Draft, parent: Parent | None, *, inline_limit: int, names: Iterator[str]) -> Composed:
    """Lay out the checkpoint object. `names` yields unique names for new value objects."""
    above = None if parent is None else parent.checkpoint
    payload = bytearray()
    channels: dict[str, Entry] = {}
    placed: dict[str, Placed] = {}
    versions: Mapping[str, Any] = draft.structure.get("channel_versions") or {}
    for name in dict.fromkeys((*versions, *draft.values)):
        bases = parent.bases.get(name, ()) if parent is not None else ()
        entry = inherited(above, name, versions, draft.changed)
        if entry is not None and above is not None:
            found = _kept(above, entry, bases)
        elif name in draft.values:
            found = place(draft.values[name], bases, inline_limit=inline_limit, names=names)
        else:
            continue
        placed[name] = found
        inside = found.entry.offset is not None
        channels[name] = found.entry._replace(offset=len(payload)) if inside else found.entry
        payload += found.inline
    header = _header(draft, above, channels)
    body = format.encode_checkpoint(header, bytes(payload))
    values = {name: value for found in placed.values() for name, value in found.before}
    return Composed(
        checkpoint=format.Checkpoint(header, bytes(payload), hashlib.sha256(body).digest()),
        body=body,
        values=values,
        beside={name: value for found in placed.values() for name, value in found.beside},
        bases={channel: found.base for channel, found in placed.items() if found.base is not None},
        refers=frozenset(header.values) - values.keys(),
    )


def _kept(parent: format.Checkpoint, entry: Entry, bases: Sequence[Base]) -> Placed:
    """A channel that did not change: what the parent's payload holds for it, or a reference."""
    if entry.offset is None:
        return Placed(entry)
    inline = parent.inline(entry)
    # The very value went up beside the parent: from now on it need not be in payloads any more.
    for base in bases[:1] if entry.values else ():
        if base.sha256 == entry.sha256:
            return Placed(entry._replace(offset=None, size=0, values=base.names))
    return Placed(entry, inline)


def _header(draft: Draft, parent: format.Checkpoint | None, channels: Mapping[str, Entry]) -> Header:
    depth = parent.header.depth if parent is not None else None
    unstored = _unstored(draft, channels)
    before = parent.header.channel_versions if parent is not None else {}
    return Header(
        namespace=draft.ref.namespace,
        checkpoint_id=draft.ref.checkpoint_id or "",
        parent_id=draft.parent_id,
        parent_sha256=parent.sha256 if parent is not None else None,
        depth=0 if draft.parent_id is None else None if depth is None else depth + 1,
        structure=draft.structure,
        extra=draft.extra,
        metadata=draft.metadata,
        metadata_thread_id=draft.metadata_thread_id,
        channels=channels,
        snapshots=tuple(sorted(name for name in channels if _is_snapshot(draft, parent, name))),
        counted=draft.counted,
        unstored=tuple(unstored),
        advanced=tuple(name for name in unstored if before.get(name) != draft.structure["channel_versions"][name]),
    )


def _is_snapshot(draft: Draft, parent: format.Checkpoint | None, name: str) -> bool:
    versions = draft.structure.get("channel_versions") or {}
    if parent is not None and inherited(parent, name, versions, draft.changed) is not None:
        return name in parent.header.snapshots
    return name in draft.snapshots


# Channels of LangGraph's own that it empties at each step, and how the others of that sort begin.
_EMPTIED = frozenset({"__start__", "__input__", "__pregel_tasks"})
_EMPTIED_PREFIX = "branch:"


def _unstored(draft: Draft, channels: Mapping[str, Entry]) -> list[str]:
    """Channels with a version and no value, but for LangGraph's own, which it empties.

    A state's key may have any name; one that is counted is a delta channel, whatever it is called.
    """
    versions: Mapping[str, Any] = draft.structure.get("channel_versions") or {}
    return sorted(
        name
        for name in versions
        if name not in channels
        and (name in draft.counted or not (name in _EMPTIED or name.startswith(_EMPTIED_PREFIX)))
    )


def rows_of(
    serde: SerializerProtocol, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
) -> list[WriteRow]:
    """A task's writes, serialized. Special channels have fixed negative numbers, the others their place."""
    text_of("task_id", task_id)
    text_of("task_path", task_path)
    return [
        WriteRow(
            task_id,
            task_path,
            WRITES_IDX_MAP.get(channel, idx),
            text_of("a write's channel", channel),
            *dump(serde, value),
        )
        for idx, (channel, value) in enumerate(writes)
    ]
