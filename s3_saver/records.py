"""LangGraph's objects to records of the archive: what a put is given is serialized and laid out here.

Serializers are arguments, never kept: LangGraph assigns `saver.serde` after a saver was made.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
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
    """A checkpoint object ready to be put: its record, its bytes, and the value objects that go before it, by name.

    `refers` says whether it refers to value objects of its parent.
    """

    checkpoint: format.Checkpoint
    body: bytes
    values: Mapping[str, bytes]
    refers: bool


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
    dropped = [name for name in cast(Mapping[Any, Any], merged) if isinstance(name, str) and not keep(name)]
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


def compose(draft: Draft, parent: format.Checkpoint | None, *, inline_limit: int, names: Iterable[str]) -> Composed:
    """Lay out the checkpoint object. `names` yields unique names for new value objects."""
    unique = iter(names)
    payload = bytearray()
    channels: dict[str, Entry] = {}
    values: dict[str, bytes] = {}
    refers = False
    versions: Mapping[str, Any] = draft.structure.get("channel_versions") or {}
    for name in dict.fromkeys((*versions, *draft.values)):
        entry = inherited(parent, name, versions, draft.changed)
        if entry is not None and entry.value is not None:
            channels[name], refers = entry, True
            continue
        typed = draft.values.get(name)
        if entry is not None and parent is not None:
            typed = Typed(entry.type, parent.inline(entry))
        if typed is None:
            continue
        digest = hashlib.sha256(typed.data).digest()
        if len(typed.data) <= inline_limit:
            channels[name] = Entry(typed.type, len(typed.data), digest, len(payload), None)
            payload += typed.data
        else:
            value = next(unique)
            values[value] = format.encode_value(typed.data)
            channels[name] = Entry(typed.type, len(typed.data), digest, None, value)
    header = _header(draft, parent, channels)
    body = format.encode_checkpoint(header, bytes(payload))
    record = format.Checkpoint(header, bytes(payload), hashlib.sha256(body).digest())
    return Composed(record, body, values, refers)


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
