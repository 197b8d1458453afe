"""Channel values and the value objects that hold large ones: whole, or as a patch against another value object.

A value object is `S3CV`, a format byte, the length of a name (one byte), that name, and one zstd frame. Without a name
the frame holds the value; with one it is a patch against the value object of that name, which is whole itself. So a
value takes at most two objects to read, and an entry names both. The law is FORMAT.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence

from manifests.checkpoints import Checkpoint, Entry
from manifests.errors import CorruptObjectError
from manifests.frames import FORMAT, RESTORE, check_format, compress, decompress

VALUE_MAGIC = b"S3CV"
_HEAD_BYTES = 6
_NAME = re.compile(rb"[A-Za-z0-9_.-]{1,255}\Z")

# The serialized value of a value object, by its name and, where it is a patch, that of its base.
Resolve = Callable[[Sequence[str]], bytes]


def encode_value(data: bytes, base: tuple[str, bytes] | None = None) -> bytes:
    """The bytes of a value object that holds `data`, a channel's serialized value.

    With a `base`, the name and the serialized value of a whole value object, it is a patch against that.
    """
    return compress_value(data) if base is None else patch_value(compress(data, base[1]), base[0])


def compress_value(data: bytes) -> bytes:
    return _object(compress(data), "")


def patch_value(patch: bytes, base: str) -> bytes:
    """The bytes of a value object that holds a patch against the value object named `base`, which is whole."""
    return _object(patch, base)


def _object(frame: bytes, base: str) -> bytes:
    name = base.encode()
    return VALUE_MAGIC + bytes([FORMAT, len(name)]) + name + frame


def base_of(data: bytes, *, key: str) -> str | None:
    """The name of the value object that the one in `data` is a patch against; None where it is whole."""
    return _split(data, key)[0]


def decode_value(data: bytes, base: tuple[str, bytes] | None = None, *, key: str) -> bytes:
    """The serialized value in a value object. `base` is what `encode_value` was given. `key` is for messages.

    Raises `UnsupportedFormatError`, and `CorruptObjectError` also where the object names another base than `base`.
    """
    said, frame = _split(data, key)
    name, raw = base or (None, None)
    if said != name:
        found, expected = (f"base {one}" if one else "no base" for one in (said, name))
        raise CorruptObjectError(f"reading {key}: it names {found}, its entry {expected}; {RESTORE}")
    return decompress(frame, raw, key=key)


def _split(data: bytes, key: str) -> tuple[str | None, bytes]:
    if len(data) < _HEAD_BYTES:
        raise CorruptObjectError(f"reading {key}: {len(data)} bytes are no value object; {RESTORE}")
    check_format(data[:4], data[4], VALUE_MAGIC, "value", key)
    end = _HEAD_BYTES + data[5]
    name = data[_HEAD_BYTES:end]
    if name and (len(data) < end or not _NAME.match(name)):
        raise CorruptObjectError(f"reading {key}: the name of its base is cut off or no name; {RESTORE}")
    return name.decode("ascii") or None, data[end:]


def resolver(objects: Mapping[str, bytes], *, key: str) -> Resolve:
    """Resolves values from the bytes of value objects by name. `key` is the checkpoint's, for messages."""

    def resolve(names: Sequence[str]) -> bytes:
        name, *bases = names
        base = (bases[0], resolve(bases)) if bases else None
        return decode_value(objects[name], base, key=f"value {name} of {key}")

    return resolve


def value_of(checkpoint: Checkpoint, channel: str, resolve: Resolve, *, key: str) -> bytes:
    """A channel's serialized bytes, when their digest is right. `key` is the checkpoint's, for messages."""
    entry = checkpoint.header.channels[channel]
    where = f"value {entry.values[0]} of {key}" if entry.values else key
    if not entry.values:
        data = checkpoint.inline(entry)
    elif entry.offset is None:
        data = resolve(entry.values)
    else:
        data = decompress(checkpoint.inline(entry), resolve(entry.values), key=where)
    return check_digest(data, entry, channel=channel, key=where)


def check_digest(data: bytes, entry: Entry, *, channel: str, key: str) -> bytes:
    """`data`, the raw bytes of `channel`, when they have the digest that the header says."""
    found = hashlib.sha256(data).digest()
    if found != entry.sha256:
        raise CorruptObjectError(
            f"reading {key}: the SHA-256 of channel {channel!r} is {found.hex()}, the header says "
            f"{entry.sha256.hex()}; {RESTORE}"
        )
    return data
