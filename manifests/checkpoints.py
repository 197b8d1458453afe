"""The checkpoint object: bytes to records and back.

A checkpoint object is `S3CP`, a format byte, the length of the header frame (4 bytes, big-endian), a zstd frame with
the header and a zstd frame with the payload. The header says all but the bytes of the values, so a ranged GET of the
first kilobytes reads it alone. The payload is inline values, and patches against value objects, one after another.
The law is FORMAT.md.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, NamedTuple

import ormsgpack

from manifests.errors import CorruptObjectError
from manifests.frames import FORMAT, RESTORE, check_format, compress, decompress

CHECKPOINT_MAGIC = b"S3CP"
# A header of an ordinary checkpoint is 1 to 4 kB; one this long is read by a second request.
HEADER_GUESS_BYTES = 32_768

# A value object, and the one that it is a patch against.
_VALUES_MAX = 2

_HEAD = struct.Struct(">4sBI")


class Typed(NamedTuple):
    """What a LangGraph serializer makes of a value: its type's name and the bytes."""

    type: str
    data: bytes

    @property
    def encrypted(self) -> bool:
        """LangGraph's encrypting serializer joins the cipher's name to the type with `+`."""
        return "+" in self.type


class Entry(NamedTuple):
    """Where a channel's value is; `length` and `sha256` are those of its serialized bytes.

    Without `values` it is `size` bytes at `offset` in the payload. With them and no `offset` it is what the value
    object `values[0]` holds; with both it is a patch of `size` bytes at `offset` against that. Where `values[0]` is
    itself a patch, `values[1]` is its base: all that a reader must fetch is named here.
    """

    type: str
    length: int
    sha256: bytes
    offset: int | None
    size: int
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Header:
    """All that a checkpoint object says but the bytes of its values. Treat the mappings as read-only.

    `structure` holds those of `v`, `ts`, `channel_versions`, `versions_seen`, `updated_channels` that the checkpoint
    had; `extra` its other keys. `metadata_thread_id` is true where the metadata named the checkpoint's own thread:
    that entry is left out of `metadata`, so that a copied object names the thread it was copied to.
    `depth` is the number of ancestors and `parent_sha256` the digest of the parent's object, where known.

    The last four name channels, so that a prune can tell what a checkpoint needs of its ancestors without reading
    values or metadata: `snapshots` hold a delta channel's snapshot here; `counted` are delta channels by the
    metadata's counters; `unstored` have a version but no value here; `advanced` are those of the unstored whose
    version is not the parent's. LangGraph's own channels, which it empties, are in neither of the last two.
    """

    namespace: str
    checkpoint_id: str
    parent_id: str | None
    parent_sha256: bytes | None
    depth: int | None
    structure: Mapping[str, Any]
    extra: Mapping[str, Typed]
    metadata: Typed
    metadata_thread_id: bool
    channels: Mapping[str, Entry]
    snapshots: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    unstored: tuple[str, ...] = ()
    advanced: tuple[str, ...] = ()

    @property
    def channel_versions(self) -> Mapping[str, Any]:
        versions: Mapping[str, Any] = self.structure.get("channel_versions") or {}
        return versions

    @property
    def values(self) -> tuple[str, ...]:
        """The names of the value objects that the checkpoint needs, each once."""
        return tuple(dict.fromkeys(name for entry in self.channels.values() for name in entry.values))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A decoded checkpoint object. `sha256` is that of the whole object; None where only its start was read."""

    header: Header
    payload: bytes = field(repr=False)
    sha256: bytes | None = None

    def inline(self, entry: Entry) -> bytes:
        """What the payload holds for the entry: the value, or a patch."""
        assert entry.offset is not None
        return self.payload[entry.offset : entry.offset + entry.size]


STRUCTURE = ("v", "ts", "channel_versions", "versions_seen", "updated_channels")


def encode_checkpoint(header: Header, payload: bytes) -> bytes:
    """The object's bytes. Raises `TypeError` where the structure holds what msgpack cannot."""
    try:
        packed = ormsgpack.packb(_fields_of(header))
    except ormsgpack.MsgpackEncodeError as error:
        raise TypeError(f"the checkpoint's structure cannot be stored: {error}") from error
    compressed = compress(packed)
    return _HEAD.pack(CHECKPOINT_MAGIC, FORMAT, len(compressed)) + compressed + compress(payload)


def decode_checkpoint(data: bytes, *, key: str) -> Checkpoint:
    """Decode a whole checkpoint object. `key` is for messages.

    Raises `UnsupportedFormatError` and `CorruptObjectError`.
    """
    length = header_length(data, key=key)
    if len(data) < length:
        raise CorruptObjectError(f"reading {key}: {len(data)} bytes, but the header alone has {length}; {RESTORE}")
    header = decode_header(data, key=key)
    payload = decompress(data[length:], key=key)
    for name, entry in header.channels.items():
        if entry.offset is not None and entry.offset + entry.size > len(payload):
            raise CorruptObjectError(f"reading {key}: channel {name!r} ends beyond the payload; {RESTORE}")
    return Checkpoint(header, payload, hashlib.sha256(data).digest())


def header_length(data: bytes, *, key: str) -> int:
    """How many bytes of the object hold the header; the object's first nine bytes suffice to tell."""
    if len(data) < _HEAD.size:
        raise CorruptObjectError(f"reading {key}: {len(data)} bytes are no checkpoint object; {RESTORE}")
    magic, version, length = _HEAD.unpack_from(data)
    check_format(magic, version, CHECKPOINT_MAGIC, "checkpoint", key)
    return _HEAD.size + int(length)


def decode_header(data: bytes, *, key: str) -> Header:
    """Decode the header of an object whose first `header_length` bytes are in `data`."""
    packed = decompress(data[_HEAD.size : header_length(data, key=key)], key=key)
    try:
        fields = ormsgpack.unpackb(packed)
        return _header_from(fields)
    except (ormsgpack.MsgpackDecodeError, KeyError, TypeError, ValueError) as error:
        raise CorruptObjectError(f"reading {key}: the header cannot be decoded ({error!r}); {RESTORE}") from error


def _fields_of(header: Header) -> dict[str, Any]:
    return {
        "namespace": header.namespace,
        "checkpoint_id": header.checkpoint_id,
        "parent_id": header.parent_id,
        "parent_sha256": header.parent_sha256,
        "depth": header.depth,
        "structure": dict(header.structure),
        "extra": {name: list(typed) for name, typed in header.extra.items()},
        "metadata": list(header.metadata),
        "metadata_thread_id": header.metadata_thread_id,
        "channels": {name: [*entry[:-1], list(entry.values)] for name, entry in header.channels.items()},
        "snapshots": list(header.snapshots),
        "counted": list(header.counted),
        "unstored": list(header.unstored),
        "advanced": list(header.advanced),
    }


# What the header's fields may be. A checksum does not tell who wrote a header, or with what.
_FIELD_TYPES: Mapping[str, tuple[type, ...]] = {
    "namespace": (str,),
    "checkpoint_id": (str,),
    "parent_id": (str, NoneType),
    "parent_sha256": (bytes, NoneType),
    "depth": (int, NoneType),
    "structure": (dict,),
    "extra": (dict,),
    "metadata": (list,),
    "metadata_thread_id": (bool,),
    "channels": (dict,),
    "snapshots": (list,),
    "counted": (list,),
    "unstored": (list,),
    "advanced": (list,),
}


def _header_from(fields: dict[str, Any]) -> Header:
    """Raises KeyError, TypeError and ValueError for fields that make no header. Fields it does not know are ignored."""
    for name, types in _FIELD_TYPES.items():
        _check_type(name, fields[name], types)
    _check_type("channel_versions", fields["structure"].get("channel_versions"), (dict, NoneType))
    for name in ("snapshots", "counted", "unstored", "advanced"):
        for channel in fields[name]:
            _check_type(name, channel, (str,))
    return Header(
        namespace=fields["namespace"],
        checkpoint_id=fields["checkpoint_id"],
        parent_id=fields["parent_id"],
        parent_sha256=fields["parent_sha256"],
        depth=fields["depth"],
        structure=fields["structure"],
        extra={name: _typed_from(typed) for name, typed in fields["extra"].items()},
        metadata=_typed_from(fields["metadata"]),
        metadata_thread_id=fields["metadata_thread_id"],
        channels={name: _entry_from(entry) for name, entry in fields["channels"].items()},
        snapshots=tuple(fields["snapshots"]),
        counted=tuple(fields["counted"]),
        unstored=tuple(fields["unstored"]),
        advanced=tuple(fields["advanced"]),
    )


def _typed_from(fields: Any) -> Typed:
    typed = Typed(*fields)
    _check_type("type", typed.type, (str,))
    _check_type("data", typed.data, (bytes,))
    return typed


def _entry_from(fields: Any) -> Entry:
    *places, values = fields
    _check_type("values", values, (list,))
    entry = Entry._make([*places, tuple(values)])
    _check_type("type", entry.type, (str,))
    _check_type("length", entry.length, (int,))
    _check_type("sha256", entry.sha256, (bytes,))
    _check_type("offset", entry.offset, (int, NoneType))
    _check_type("size", entry.size, (int,))
    for name in entry.values:
        _check_type("values", name, (str,))
    if entry.length < 0 or entry.size < 0 or (entry.offset or 0) < 0 or len(entry.values) > _VALUES_MAX:
        raise ValueError(f"{entry} is no place")
    if entry.values:
        placed = (entry.offset is None) == (entry.size == 0)
    else:
        placed = entry.offset is not None and entry.size == entry.length
    if not placed:
        raise ValueError(f"{entry} is in no one place")
    return entry


def _check_type(name: str, value: object, types: tuple[type, ...]) -> None:
    if type(value) not in types:
        raise TypeError(f"{name} is of type {type(value).__name__}")
