"""Whether two checkpoints of one id say the same: then a repeated put is a success, else a conflict."""

from __future__ import annotations

from collections.abc import Mapping

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from manifests import checkpoints as format
from manifests.checkpoints import Header, Typed
from manifests.values import resolver, value_of
from s3_saver.cache import Cache
from s3_saver.operations.load import Loaded
from s3_saver.reading import value_from
from s3_saver.records import Composed, dump

_PLAIN = JsonPlusSerializer()


def unlike(ours: Composed, theirs: Header) -> list[str]:
    """Channels whose bytes differ; only their values need to be looked at."""
    return [
        name
        for name, entry in ours.checkpoint.header.channels.items()
        if (other := theirs.channels.get(name)) is None or (entry.type, entry.sha256) != (other.type, other.sha256)
    ]


def same_content(
    serde: SerializerProtocol, ours: Composed, theirs: Loaded, fetched: Mapping[str, bytes], cache: Cache
) -> bool:
    """Whether both say the same, wherever their values are. `fetched` holds value objects that ours refers to.

    Encryption, and the order of a set, give the same content other bytes: then decoded values are compared.
    """
    mine, stored = ours.checkpoint, format.decode_checkpoint(theirs.body, key=theirs.key)
    # Our own values may never have been stored under their names, so they are not remembered.
    my_values = resolver({**fetched, **ours.values}, key=theirs.key)
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
                Typed(mine.header.channels[name].type, value_of(mine, name, my_values, key=theirs.key)),
                Typed(
                    stored.header.channels[name].type, value_from(stored, name, theirs.values, cache, key=theirs.key)
                ),
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
