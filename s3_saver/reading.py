"""Records of the archive to LangGraph's objects: fresh ones on every call, since LangGraph edits what it is given."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from langgraph.checkpoint.base import (
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
)
from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.types import TASKS

from manifests import checkpoints as format
from manifests.checkpoints import Header, Typed
from manifests.keys import thread_folder_of, value_in
from manifests.segments import Row, row_of
from manifests.structure import to_json
from manifests.values import decode_value, value_of
from manifests.writes import WriteRow, decode_writes, merge_writes
from s3_saver.bucket import Body, Listed
from s3_saver.cache import Cache
from s3_saver.configs import config_of
from s3_saver.operations.delta_history import Ancestor
from s3_saver.operations.load import Loaded
from s3_saver.operations.survey import Describe
from s3_saver.refs import Ref


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


def tuple_of(serde: SerializerProtocol, loaded: Loaded, first_version: str, cache: Cache) -> CheckpointTuple:
    """The checkpoint as LangGraph knows it, made of fresh objects."""
    decoded = format.decode_checkpoint(loaded.body, key=loaded.key)
    header = decoded.header
    checkpoint: dict[str, Any] = {**header.structure, "id": header.checkpoint_id}
    checkpoint["channel_values"] = {
        name: serde.loads_typed((entry.type, value_from(decoded, name, loaded.values, cache, key=loaded.key)))
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


def value_from(
    checkpoint: format.Checkpoint, channel: str, objects: Mapping[str, bytes], cache: Cache, *, key: str
) -> bytes:
    """A channel's serialized bytes. `objects` are value objects by name, each decoded once while it is remembered.

    What they hold is remembered when the channel's digest has proved it: later values are built on that.
    """
    folder = thread_folder_of(key)
    fresh: dict[str, bytes] = {}

    def resolve(names: Sequence[str]) -> bytes:
        name, *bases = names
        where = value_in(folder, name)
        raw = cache.value(where)
        if raw is None:
            base = (bases[0], resolve(bases)) if bases else None
            built = f" (built on {bases[0]})" if bases else ""
            raw = fresh[where] = decode_value(objects[name], base, key=f"value {name}{built} of {key}")
        return raw

    data = value_of(checkpoint, channel, resolve, key=key)
    for where, raw in fresh.items():
        cache.keep_value(where, raw)
    return data


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


def histories_of(
    serde: SerializerProtocol, ancestors: Sequence[Ancestor], channels: Sequence[str], cache: Cache
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
                raw = value_from(decoded, channel, loaded.values, cache, key=loaded.key)
                histories[channel]["seed"] = serde.loads_typed((decoded.header.channels[channel].type, raw))
        remaining -= ancestor.seeds
    for channel, writes in nearest_first.items():
        histories[channel]["writes"] = writes[::-1]
    return histories
