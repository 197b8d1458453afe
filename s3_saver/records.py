"""LangGraph's objects to records of the archive, and back. The only module that calls a serializer.

Serializers are arguments, never kept: LangGraph assigns `saver.serde` after a saver was made.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import TASKS, _DeltaSnapshot

from manifests import checkpoints as format
from manifests.checkpoints import STRUCTURE, Entry, Header, Typed
from manifests.segments import Row, row_of
from manifests.structure import to_json
from manifests.writes import WriteRow, decode_writes, merge_writes
from s3_saver.bucket import Body, Listed
from s3_saver.configs import checkpoint_id_of, config_of, ref_of, text_of
from s3_saver.operations.delta_history import Ancestor
from s3_saver.operations.load import Loaded
from s3_saver.operations.survey import Describe
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
    merged = cast(dict[str, Any], get_checkpoint_metadata(config, metadata))
    if keep is None:
        return merged
    # LangGraph's metadata may have keys that are no text; the filter is for names.
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


def _unstored(draft: Draft, channels: Mapping[str, Entry]) -> list[str]:
    """Channels with a version and no value, but for LangGraph's own, which it empties."""
    versions: Mapping[str, Any] = draft.structure.get("channel_versions") or {}
    return sorted(name for name in versions if name not in channels and not name.startswith(("__", "branch:")))


# Reading back


def metadata_of(serde: SerializerProtocol, thread_id: str, typed: Typed, has_thread_id: bool) -> CheckpointMetadata:
    """The metadata of a checkpoint. `has_thread_id`: it named the thread that it is read from."""
    metadata = cast(dict[str, Any], serde.loads_typed(typed))
    if has_thread_id:
        metadata["thread_id"] = thread_id
    return cast(CheckpointMetadata, metadata)


def describer(serde: SerializerProtocol) -> Describe:
    """How a checkpoint's header becomes its row in the manifest. Of encrypted metadata nothing is shown."""

    def describe(header: Header, listed: Listed, body: Body) -> Row:
        plain = not header.metadata.encrypted
        return row_of(
            header,
            size=listed.size,
            etag=listed.etag,
            sha256=hashlib.sha256(body.data).digest() if body.whole else None,
            described=cast(dict[str, Any], serde.loads_typed(header.metadata)) if plain else {},
            metadata_json=to_json(*header.metadata) if plain else None,
        )

    return describe


def run_of(serde: SerializerProtocol) -> Callable[[Row], str | None]:
    """The run that a row's checkpoint belongs to, by its metadata."""

    def run(row: Row) -> str | None:
        if row.run_id is not None or not row.typed_metadata.encrypted:
            return row.run_id
        found = cast(dict[str, Any], serde.loads_typed(row.typed_metadata)).get("run_id")
        return found if isinstance(found, str) else None

    return run


def tuple_of(serde: SerializerProtocol, loaded: Loaded, first_version: str) -> CheckpointTuple:
    """The checkpoint as LangGraph knows it, made of fresh objects."""
    decoded = format.decode_checkpoint(loaded.body, key=loaded.key)
    header = decoded.header
    checkpoint: dict[str, Any] = {**header.structure, "id": header.checkpoint_id}
    checkpoint["channel_values"] = {
        name: serde.loads_typed((entry.type, raw_value(loaded, decoded, name)))
        for name, entry in header.channels.items()
    }
    checkpoint |= {name: serde.loads_typed(typed) for name, typed in header.extra.items()}
    if loaded.sends:
        _add_sends(serde, checkpoint, loaded, first_version)
    parent = header.parent_id and config_of(Ref(loaded.ref.thread_id, loaded.ref.namespace, header.parent_id))
    return CheckpointTuple(
        config=config_of(loaded.ref),
        checkpoint=cast(Checkpoint, checkpoint),
        metadata=metadata_of(serde, loaded.ref.thread_id, header.metadata, header.metadata_thread_id),
        parent_config=parent or None,
        pending_writes=[
            (row.task_id, row.channel, serde.loads_typed((row.type, row.value)))
            for row in standing_writes(loaded.ref, loaded.writes)
        ],
    )


def raw_value(loaded: Loaded, decoded: format.Checkpoint, channel: str) -> bytes:
    """A channel's serialized bytes, when their digest is right."""
    entry = decoded.header.channels[channel]
    if entry.value is None:
        return format.check_digest(decoded.inline(entry), entry, channel=channel, key=loaded.key)
    data = format.decode_value(loaded.values[entry.value], key=f"value {entry.value} of {loaded.key}")
    return format.check_digest(data, entry, channel=channel, key=f"value {entry.value} of {loaded.key}")


def standing_writes(ref: Ref, batches: Mapping[str, bytes]) -> list[WriteRow]:
    """The writes that stand of a checkpoint's batches, in the order that LangGraph replays them."""
    assert ref.checkpoint_id is not None
    return merge_writes(
        decode_writes(data, key=key, namespace=ref.namespace, checkpoint_id=ref.checkpoint_id)
        for key, data in batches.items()
    )


def _add_sends(serde: SerializerProtocol, checkpoint: dict[str, Any], loaded: Loaded, first_version: str) -> None:
    """Before format 4 a superstep's sends were writes on the parent; LangGraph now expects them in a channel."""
    parent = Ref(loaded.ref.thread_id, loaded.ref.namespace, loaded.header.parent_id)
    rows = standing_writes(parent, loaded.sends or {})
    sends = [serde.loads_typed((row.type, row.value)) for row in rows if row.channel == TASKS]
    if sends:
        checkpoint["channel_values"][TASKS] = sends
        versions = checkpoint.setdefault("channel_versions", {})
        versions[TASKS] = max(versions.values()) if versions else first_version


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


def histories_of(
    serde: SerializerProtocol, ancestors: Sequence[Ancestor], channels: Sequence[str]
) -> dict[str, DeltaChannelHistory]:
    """For each channel its writes on the ancestors, oldest first, back to its nearest stored value, and that value."""
    histories: dict[str, DeltaChannelHistory] = {channel: {"writes": []} for channel in channels}
    remaining = set(channels)
    nearest_first: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
    for ancestor in ancestors:
        loaded = ancestor.loaded
        for row in reversed(standing_writes(loaded.ref, loaded.writes)):
            if row.channel in remaining:
                value = serde.loads_typed((row.type, row.value))
                nearest_first[row.channel].append((row.task_id, row.channel, value))
        if ancestor.seeds:
            decoded = format.decode_checkpoint(loaded.body, key=loaded.key)
            for channel in ancestor.seeds:
                entry = decoded.header.channels[channel]
                histories[channel]["seed"] = serde.loads_typed((entry.type, raw_value(loaded, decoded, channel)))
        remaining -= ancestor.seeds
    for channel, writes in nearest_first.items():
        histories[channel]["writes"] = writes[::-1]
    return histories


# Comparing, when a checkpoint of the same id is stored already


def unlike(ours: Composed, theirs: Header) -> list[str]:
    """Channels whose bytes differ; only their values need to be looked at."""
    return [
        name
        for name, entry in ours.checkpoint.header.channels.items()
        if (other := theirs.channels.get(name)) is None or (entry.type, entry.sha256) != (other.type, other.sha256)
    ]


def same_content(serde: SerializerProtocol, ours: Composed, theirs: Loaded, fetched: Mapping[str, bytes]) -> bool:
    """Whether both say the same, wherever their values are. `fetched` holds value objects that ours refers to.

    Encryption, and the order of a set, give the same content other bytes: then decoded values are compared.
    """
    mine, stored = ours.checkpoint, format.decode_checkpoint(theirs.body, key=theirs.key)
    ours_loaded = Loaded(theirs.ref, theirs.key, mine.header, ours.body, {**fetched, **ours.values}, {})
    return (
        mine.header.parent_id == stored.header.parent_id
        and mine.header.structure == stored.header.structure
        and mine.header.metadata_thread_id == stored.header.metadata_thread_id
        and _same(serde, mine.header.metadata, stored.header.metadata)
        and mine.header.extra.keys() == stored.header.extra.keys()
        and all(_same(serde, typed, stored.header.extra[name]) for name, typed in mine.header.extra.items())
        and mine.header.channels.keys() == stored.header.channels.keys()
        and all(
            _same(
                serde,
                Typed(mine.header.channels[name].type, raw_value(ours_loaded, mine, name)),
                Typed(stored.header.channels[name].type, raw_value(theirs, stored, name)),
            )
            for name in unlike(ours, stored.header)
        )
    )


def _same(serde: SerializerProtocol, one: Typed, other: Typed) -> bool:
    if one == other:
        return True
    first, second = serde.loads_typed(one), serde.loads_typed(other)
    try:
        # Bytes first: arrays, and objects without an equality of their own, have no truth to their `==`.
        return dump(_PLAIN, first) == dump(_PLAIN, second) or bool(first == second)
    except (TypeError, ValueError):
        return False


_PLAIN = JsonPlusSerializer()
