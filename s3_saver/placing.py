"""Where a large channel value is put: whole, or as a patch, so that a value that grows costs little more than it grew.

Three places build on each other. A key value is whole. A middle value is a patch against a key value. A checkpoint's
payload holds a patch against either. When the patches in payloads have grown, a new middle value is due, and when these
have, a new key value. The checkpoint that finds this out does not wait for it: its payload holds the larger patch, and
the new value goes up beside it, for the next checkpoint to build on. Only what no patch can make small is put before
its checkpoint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from manifests.checkpoints import Entry, Typed
from manifests.frames import PATCHED_BYTES_MAX, compress
from manifests.values import compress_value, patch_value

# Measured on chats (`scripts/bench`): with these, payloads, middle and key values each take a like share of the bytes.
_NEAR_BYTES, _NEAR_SHARE = 4096, 64
_FAR_BYTES, _FAR_SHARE = 32_768, 12
# A patch this much smaller than the whole is worth a checkpoint that need not wait.
_WORTH = 4


@dataclass(frozen=True, slots=True)
class Base:
    """A stored value to build on: its value object's name, its base's if it is a patch, and the serialized value."""

    names: tuple[str, ...]
    raw: bytes = field(repr=False)

    @property
    def sha256(self) -> bytes:
        return hashlib.sha256(self.raw).digest()


@dataclass(frozen=True, slots=True)
class Placed:
    """A channel's entry without its offset, and what belongs to it.

    `inline` goes into the payload, `before` is a value object that the checkpoint needs, `beside` one that the next one
    may build on; both by name. `base` is what the next one builds on, where that is new.
    """

    entry: Entry
    inline: bytes = field(default=b"", repr=False)
    before: tuple[tuple[str, bytes], ...] = ()
    beside: tuple[tuple[str, bytes], ...] = ()
    base: Base | None = None


def patchable(typed: Typed) -> bool:
    """Encrypted bytes have nothing in common with those of the value before."""
    return not typed.encrypted and len(typed.data) <= PATCHED_BYTES_MAX


def place(typed: Typed, bases: Sequence[Base], *, inline_limit: int, names: Iterator[str]) -> Placed:
    """Where a value that is new in its checkpoint goes. `bases` are the parent's value, nearest first, its key last."""
    entry = Entry(typed.type, len(typed.data), hashlib.sha256(typed.data).digest(), 0, len(typed.data), ())
    if len(typed.data) <= inline_limit:
        return Placed(entry, typed.data)
    if not bases or not patchable(typed):
        return _whole(entry, typed.data, compress_value(typed.data), next(names))
    near, key = bases[0], bases[-1]
    patch = compress(typed.data, near.raw)
    if len(patch) <= max(_NEAR_BYTES, len(typed.data) // _NEAR_SHARE):
        return _patched(entry, patch, near)
    far = patch if near is key else compress(typed.data, key.raw)
    if len(far) < len(patch):
        near, patch = key, far
    if len(far) <= max(_FAR_BYTES, len(typed.data) // _FAR_SHARE):
        return _patched(entry, patch, near, (next(names), *key.names), typed.data, patch_value(far, key.names[0]))
    whole = compress_value(typed.data)
    if len(patch) * _WORTH <= len(whole):
        return _patched(entry, patch, near, (next(names),), typed.data, whole)
    return _whole(entry, typed.data, whole, next(names))


def _whole(entry: Entry, data: bytes, value: bytes, name: str) -> Placed:
    entry = entry._replace(offset=None, size=0, values=(name,))
    return Placed(entry, before=((name, value),), base=Base((name,), data))


def _patched(
    entry: Entry, patch: bytes, near: Base, names: tuple[str, ...] = (), data: bytes = b"", value: bytes = b""
) -> Placed:
    """A patch in the payload; with `names`, `value` goes up beside it, for the next checkpoint to build on."""
    entry = entry._replace(size=len(patch), values=near.names)
    if not names:
        return Placed(entry, patch)
    return Placed(entry, patch, beside=((names[0], value),), base=Base(names, data))
