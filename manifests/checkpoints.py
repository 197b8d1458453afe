"""The checkpoint object and the value object: bytes to records and back.

A checkpoint object is `S3CP`, a format byte, the length of the header frame (4 bytes, big-endian), a zstd frame with
the header and a zstd frame with the payload. The header says all but the bytes of the values, so a ranged GET of the
first kilobytes reads it alone. The payload is the inline values, one after another.
A value object is `S3CV`, a format byte and one zstd frame. The law is FORMAT.md.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, NamedTuple

import ormsgpack
import zstandard

from manifests.errors import CorruptObjectError, UnsupportedFormatError

CHECKPOINT_MAGIC = b"S3CP"
VALUE_MAGIC = b"S3CV"
FORMAT = 1
# A header of an ordinary checkpoint is 1 to 4 kB; one this long is read by a second request.
HEADER_GUESS_BYTES = 32_768

_HEAD = struct.Struct(">4sBI")
_LEVEL = 3
_CHUNK_BYTES = 2**20


class Typed(NamedTuple):
    """What a LangGraph serializer makes of a value: its type's name and the bytes."""

    type: str
    data: bytes

    @property
    def encrypted(self) -> bool:
        """LangGraph's encrypting serializer joins the cipher's name to the type with `+`."""
        return "+" in self.type


class Entry(NamedTuple):
    """Where a channel's value is: inline at `offset` in the payload, or whole in the value object `value`."""

    type: str
    length: int
    sha256: bytes
    offset: int | None
    value: str | None


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
        return tuple(dict.fromkeys(entry.value for entry in self.channels.values() if entry.value))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A decoded checkpoint object. `sha256` is that of the whole object; None where only its start was read."""

    header: Header
    payload: bytes = field(repr=False)
    sha256: bytes | None = None

    def inline(self, entry: Entry) -> bytes:
        assert entry.offset is not None
        return self.payload[entry.offset : entry.offset + entry.length]


STRUCTURE = ("v", "ts", "channel_versions", "versions_seen", "updated_channels")


def encode_checkpoint(header: Header, payload: bytes) -> bytes:
    """The object's bytes. Raises `TypeError` where the structure holds what msgpack cannot."""
    try:
        packed = ormsgpack.packb(_fields_of(header))
    except ormsgpack.MsgpackEncodeError as error:
        raise TypeError(f"the checkpoint's structure cannot be stored: {error}") from error
    compressed = _compress(packed)
    return _HEAD.pack(CHECKPOINT_MAGIC, FORMAT, len(compressed)) + compressed + _compress(payload)


def decode_checkpoint(data: bytes, *, key: str) -> Checkpoint:
    """Decode a whole checkpoint object. `key` is for messages.

    Raises `UnsupportedFormatError` and `CorruptObjectError`.
    """
    length = header_length(data, key=key)
    if len(data) < length:
        raise CorruptObjectError(f"reading {key}: {len(data)} bytes, but the header alone has {length}; {_RESTORE}")
    header = decode_header(data, key=key)
    payload = _decompress(data[length:], key=key)
    for name, entry in header.channels.items():
        if entry.offset is not None and entry.offset + entry.length > len(payload):
            raise CorruptObjectError(f"reading {key}: channel {name!r} ends beyond the payload; {_RESTORE}")
    return Checkpoint(header, payload, hashlib.sha256(data).digest())


def header_length(data: bytes, *, key: str) -> int:
    """How many bytes of the object hold the header; the object's first nine bytes suffice to tell."""
    if len(data) < _HEAD.size:
        raise CorruptObjectError(f"reading {key}: {len(data)} bytes are no checkpoint object; {_RESTORE}")
    magic, version, length = _HEAD.unpack_from(data)
    _check_format(magic, version, CHECKPOINT_MAGIC, "checkpoint", key)
    return _HEAD.size + int(length)


def decode_header(data: bytes, *, key: str) -> Header:
    """Decode the header of an object whose first `header_length` bytes are in `data`."""
    packed = _decompress(data[_HEAD.size : header_length(data, key=key)], key=key)
    try:
        fields = ormsgpack.unpackb(packed)
        return _header_from(fields)
    except (ormsgpack.MsgpackDecodeError, KeyError, TypeError, ValueError) as error:
        raise CorruptObjectError(f"reading {key}: the header cannot be decoded ({error!r}); {_RESTORE}") from error


def encode_value(data: bytes) -> bytes:
    """The bytes of a value object that holds `data`, a channel's serialized value."""
    return VALUE_MAGIC + bytes([FORMAT]) + _compress(data)


def decode_value(data: bytes, *, key: str) -> bytes:
    """The serialized value in a value object. `key` is for messages.

    Raises `UnsupportedFormatError` and `CorruptObjectError`.
    """
    if len(data) < 5:
        raise CorruptObjectError(f"reading {key}: {len(data)} bytes are no value object; {_RESTORE}")
    _check_format(data[:4], data[4], VALUE_MAGIC, "value", key)
    return _decompress(data[5:], key=key)


def check_digest(data: bytes, entry: Entry, *, channel: str, key: str) -> bytes:
    """`data`, the raw bytes of `channel`, when they have the digest that the header says."""
    found = hashlib.sha256(data).digest()
    if found != entry.sha256:
        raise CorruptObjectError(
            f"reading {key}: the SHA-256 of channel {channel!r} is {found.hex()}, the header says "
            f"{entry.sha256.hex()}; {_RESTORE}"
        )
    return data


_RESTORE = "restore the object or delete the checkpoint"


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
        "channels": {name: list(entry) for name, entry in header.channels.items()},
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
    entry = Entry(*fields)
    _check_type("type", entry.type, (str,))
    _check_type("length", entry.length, (int,))
    _check_type("sha256", entry.sha256, (bytes,))
    _check_type("offset", entry.offset, (int, NoneType))
    _check_type("value", entry.value, (str, NoneType))
    if (entry.offset is None) == (entry.value is None) or entry.length < 0 or (entry.offset or 0) < 0:
        raise ValueError(f"{entry} is in no one place")
    return entry


def _check_type(name: str, value: object, types: tuple[type, ...]) -> None:
    if type(value) not in types:
        raise TypeError(f"{name} is of type {type(value).__name__}")


def _check_format(magic: bytes, version: int, expected: bytes, kind: str, key: str) -> None:
    if magic != expected:
        raise CorruptObjectError(f"reading {key}: it starts with {magic!r}, a {kind} object with {expected!r}")
    if version != FORMAT:
        raise UnsupportedFormatError(
            f"reading {key}: {kind} format {version}, this release reads format {FORMAT}; upgrade the package"
        )


def _compress(data: bytes) -> bytes:
    # One compressor a call: they are not safe to share between threads, and making one costs microseconds.
    return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(data)


def _decompress(data: bytes, *, key: str) -> bytes:
    # As a stream, memory grows with what is there; a damaged frame may claim to hold terabytes.
    stream = zstandard.ZstdDecompressor().decompressobj(write_size=_CHUNK_BYTES)
    try:
        raw: bytes = stream.decompress(data)
    except zstandard.ZstdError as error:
        raise CorruptObjectError(f"reading {key}: {error}; {_RESTORE}") from error
    if not stream.eof or stream.unused_data:
        raise CorruptObjectError(f"reading {key}: a zstd frame is cut off, or something follows it; {_RESTORE}")
    return raw
