"""Checkpoint and value objects: what is stored comes back, and damage is refused, never guessed at."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import ormsgpack
import pytest
import zstandard
from golden_objects import FULL, SMALLEST, packed
from hypothesis import given, settings
from hypothesis import strategies as st

from manifests import (
    Checkpoint,
    CorruptObjectError,
    Entry,
    Header,
    Typed,
    UnsupportedFormatError,
    base_of,
    check_digest,
    decode_checkpoint,
    decode_header,
    decode_value,
    encode_checkpoint,
    encode_value,
)
from manifests.checkpoints import header_length

relaxed = settings(deadline=None, max_examples=150)

texts = st.text(max_size=20)
typed = st.builds(Typed, texts, st.binary(max_size=50))
versions = st.one_of(texts, st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False))
plain = st.recursive(
    st.one_of(st.none(), st.booleans(), versions, st.binary(max_size=10)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)
structures = st.fixed_dictionaries(
    {},
    optional={
        "v": st.integers(1, 9),
        "ts": texts,
        "channel_versions": st.dictionaries(texts, versions, max_size=4),
        "versions_seen": st.dictionaries(texts, st.dictionaries(texts, versions, max_size=3), max_size=3),
        "updated_channels": st.one_of(st.none(), st.lists(texts, max_size=3)),
    },
)
channel_names = st.lists(texts, max_size=3).map(tuple)


@st.composite
def checkpoints(draw: st.DrawFn) -> tuple[Header, bytes]:
    """A header and the payload that it describes."""
    channels: dict[str, Entry] = {}
    payload = b""
    for name, value in draw(st.dictionaries(texts, typed, max_size=5)).items():
        digest = hashlib.sha256(value.data).digest()
        if draw(st.booleans()):
            channels[name] = Entry(value.type, len(value.data), digest, len(payload), len(value.data), ())
            payload += value.data
            continue
        values = tuple(f"{len(channels):031x}{number}" for number in range(draw(st.integers(1, 2))))
        if draw(st.booleans()):
            channels[name] = Entry(value.type, len(value.data), digest, None, 0, values)
        else:
            channels[name] = Entry(value.type, len(value.data), digest, len(payload), 3, values)
            payload += b"any"
    header = Header(
        namespace=draw(texts),
        checkpoint_id=draw(texts),
        parent_id=draw(st.none() | texts),
        parent_sha256=draw(st.none() | st.binary(min_size=32, max_size=32)),
        depth=draw(st.none() | st.integers(0, 2**40)),
        structure=draw(structures),
        extra=draw(st.dictionaries(texts, typed, max_size=3)),
        metadata=draw(typed),
        metadata_thread_id=draw(st.booleans()),
        channels=channels,
        snapshots=draw(channel_names),
        counted=draw(channel_names),
        unstored=draw(channel_names),
        advanced=draw(channel_names),
    )
    return header, payload


# Round trips


@relaxed
@given(checkpoints())
def test_checkpoint_objects_round_trip(checkpoint: tuple[Header, bytes]) -> None:
    """Header, payload and the object's digest come back, and the header from its own bytes alone."""
    body = encode_checkpoint(*checkpoint)
    found = decode_checkpoint(body, key="k")
    assert found == Checkpoint(*checkpoint, hashlib.sha256(body).digest())
    length = header_length(body[:9], key="k")
    assert decode_header(body[:length], key="k") == found.header
    assert decode_header(body[: length + 1], key="k") == found.header


@relaxed
@given(st.binary(max_size=200))
def test_value_objects_round_trip(data: bytes) -> None:
    """A value object gives its bytes back."""
    assert decode_value(encode_value(data), key="k") == data


def test_large_values_round_trip() -> None:
    """Values of many megabytes come back, compressible or not."""
    noise = hashlib.shake_256(b"noise").digest(3_000_000)
    for data in (bytes(20_000_000), noise, noise * 4):
        assert decode_value(encode_value(data), key="k") == data


def test_inline_values_are_where_the_header_says() -> None:
    """Each inline value is cut out of the payload, and has its digest."""
    header = FULL.header
    found = decode_checkpoint(encode_checkpoint(header, FULL.payload), key="k")
    for name, entry in header.channels.items():
        if not entry.values:
            assert check_digest(found.inline(entry), entry, channel=name, key="k") == FULL.inline(entry)
    document, grown = header.channels["document"], header.channels["grown"]
    assert header.values == (*document.values, grown.values[0])
    assert grown.values[1:] == document.values
    assert not header.metadata.encrypted
    assert Typed(*header.channels["secret"][:1], b"").encrypted


def test_what_msgpack_lacks_is_refused_before_anything_is_stored() -> None:
    """A structure that cannot be stored raises `TypeError` when it is encoded."""
    for wrong in ({"v": object()}, {"v": 2**70}, {"ts": "\ud800"}):
        with pytest.raises(TypeError, match="cannot be stored"):
            encode_checkpoint(_with(SMALLEST.header, structure=wrong), b"")


def _with(header: Header, **changes: Any) -> Header:
    return Header(**{name: getattr(header, name) for name in Header.__slots__} | changes)


# Damage


def _read_checkpoint(data: bytes) -> object:
    """All that a reader makes of a checkpoint object, digests checked."""
    found = decode_checkpoint(data, key="k")
    values = {
        name: check_digest(found.inline(entry), entry, channel=name, key="k")
        for name, entry in found.header.channels.items()
        if not entry.values
    }
    return found.header, values


def _read_value(data: bytes) -> object:
    return decode_value(data, key="k")


BASE = ("base", b"a value, a value, a value" * 9)


def _read_patch(data: bytes) -> object:
    return decode_value(data, BASE, key="k")


OBJECTS = {
    "patch": (encode_value(b"another " + BASE[1], BASE), _read_patch),
    "checkpoint": (encode_checkpoint(SMALLEST.header, SMALLEST.payload), _read_checkpoint),
    "value": (encode_value(b"a value, a value, a value" * 9), _read_value),
}
every_object = pytest.mark.parametrize(("body", "read"), OBJECTS.values(), ids=OBJECTS)


@every_object
def test_flipped_bytes_are_refused(body: bytes, read: Callable[[bytes], object]) -> None:
    """A changed byte is refused; or it was one that says nothing, such as an unused bit of zstd's, and all is equal."""
    whole, harmless = read(body), 0
    for place in range(len(body)):
        for change in range(1, 256):
            damaged = body[:place] + bytes([body[place] ^ change]) + body[place + 1 :]
            try:
                found = read(damaged)
            except (CorruptObjectError, UnsupportedFormatError):
                continue
            assert found == whole
            harmless += 1
    assert harmless < len(body) / 10


@every_object
def test_cut_objects_are_refused(body: bytes, read: Callable[[bytes], object]) -> None:
    """An object that lacks its end, or has something after it, is refused."""
    for end in range(len(body)):
        with pytest.raises(CorruptObjectError):
            read(body[:end])
    for more in (b"\0", body, zstandard.compress(b"more")):
        with pytest.raises(CorruptObjectError):
            read(body + more)


@relaxed
@given(
    st.binary(max_size=60),
    st.sampled_from(
        [b"", b"S3CP", b"S3CP\x01", b"S3CP\x01\0\0\0\x04", b"S3CV\x01", b"S3CV\x01\0", b"S3CV\x01\x04base"]
    ),
)
def test_garbage_is_refused(data: bytes, start: bytes) -> None:
    """Bytes that were never an object raise one of the two errors."""
    for read in (_read_checkpoint, _read_value, _read_patch):
        with pytest.raises((CorruptObjectError, UnsupportedFormatError)):
            read(start + data)


def test_a_frame_that_claims_terabytes_is_refused() -> None:
    """Memory is taken for what is there, not for what a damaged frame claims."""
    frame = bytearray(zstandard.ZstdCompressor(level=3, write_checksum=True).compress(b"x" * 100))
    assert frame[4] == 0x24
    frame[4] = 0xE4
    frame[5:6] = struct.pack("<Q", 2**45)
    with pytest.raises(CorruptObjectError):
        decode_value(b"S3CV\x01\0" + bytes(frame), key="k")


@pytest.mark.parametrize("version", [0, 2, 255])
def test_unknown_formats_are_refused(version: int) -> None:
    """The error names the key, what was found and what is supported."""
    for body, read in OBJECTS.values():
        with pytest.raises(
            UnsupportedFormatError, match=rf"reading k: .* format {version}, .* reads format 1; upgrade"
        ):
            read(body[:4] + bytes([version]) + body[5:])


def test_one_kind_of_object_is_not_taken_for_another() -> None:
    """A value object in a checkpoint's place is refused, and the other way round."""
    with pytest.raises(CorruptObjectError, match="a checkpoint object with b'S3CP'"):
        decode_checkpoint(encode_value(b"x" * 100), key="k")
    with pytest.raises(CorruptObjectError, match="a value object with b'S3CV'"):
        decode_value(OBJECTS["checkpoint"][0], key="k")


def test_patches_round_trip() -> None:
    """A patch gives the value back, whatever changed, and is small where little did."""
    noise = hashlib.shake_256(b"noise").digest(3_000_000)
    for data, size in (
        (noise, 4_000),
        (noise[:-1] + b"end", 4_000),
        (b"start" + noise[100_000:] + noise[:100_000], 4_000),
        (noise[:1_000_000] + b"middle" + noise[1_000_000:], 4_000),
        (b"", 100),
        (bytes(3_000_000), 1_000),
        (hashlib.shake_256(b"other").digest(100_000), 101_000),
    ):
        body = encode_value(data, ("base", noise))
        assert len(body) < size
        assert decode_value(body, ("base", noise), key="k") == data


@relaxed
@given(st.binary(max_size=200), st.binary(max_size=200))
def test_patches_of_anything_round_trip(data: bytes, base: bytes) -> None:
    """Short and empty bases serve as well."""
    assert decode_value(encode_value(data, ("b", base)), ("b", base), key="k") == data


@pytest.mark.parametrize(
    ("base", "said"),
    [(None, "it names base base, its entry no base"), (("other", BASE[1]), "it names base base, its entry base other")],
)
def test_a_patch_against_another_base_is_refused(base: tuple[str, bytes] | None, said: str) -> None:
    """The object says which base it needs; an entry that says otherwise is found out."""
    with pytest.raises(CorruptObjectError, match=said):
        decode_value(OBJECTS["patch"][0], base, key="k")
    with pytest.raises(CorruptObjectError, match="it names no base, its entry base base"):
        decode_value(OBJECTS["value"][0], BASE, key="k")


def test_a_base_with_other_content_is_refused() -> None:
    """The right name over other bytes gives another value, or none: the frame's checksum finds it out."""
    for other in (BASE[1][::-1], BASE[1][:-1], b""):
        with pytest.raises(CorruptObjectError, match="reading k"):
            decode_value(OBJECTS["patch"][0], ("base", other), key="k")


@pytest.mark.parametrize("name", ["a/b", "é", "a b", "../x"])
def test_a_base_of_no_name_is_refused(name: str) -> None:
    """What cannot be a value object's name is never made a part of a key."""
    said = name.encode()
    with pytest.raises(CorruptObjectError, match="no name"):
        base_of(b"S3CV\x01" + bytes([len(said)]) + said + OBJECTS["patch"][0][10:], key="k")


def test_wrong_digests_are_refused() -> None:
    """The error names key, channel and both digests."""
    entry = SMALLEST.header.channels["greeting"]
    found = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(CorruptObjectError, match=rf"reading k: .*'greeting' is {found}, .*{entry.sha256.hex()}"):
        check_digest(b"other", entry, channel="greeting", key="k")


# Headers that no saver wrote


def _object_of(fields: object) -> bytes:
    frame = zstandard.ZstdCompressor(write_checksum=True).compress(ormsgpack.packb(fields))
    payload = zstandard.ZstdCompressor(write_checksum=True).compress(SMALLEST.payload)
    return struct.pack(">4sBI", b"S3CP", 1, len(frame)) + frame + payload


def _fields() -> dict[str, Any]:
    body = OBJECTS["checkpoint"][0]
    frame = body[9 : header_length(body, key="k")]
    fields: dict[str, Any] = ormsgpack.unpackb(zstandard.decompress(frame))
    return fields


def test_fields_of_later_releases_are_ignored() -> None:
    """A header with one more field says what it says without it."""
    found = decode_checkpoint(_object_of(_fields() | {"field_of_a_later_release": [1]}), key="k")
    assert found.header == SMALLEST.header


@pytest.mark.parametrize(
    "place",
    [
        [None, 6, []],
        [None, 0, []],
        [0, 5, []],
        [0, 7, []],
        [-1, 6, []],
        [None, 6, ["v"]],
        [0, 0, ["v"]],
        [0, -6, ["v"]],
        [None, 0, ["v", "b", "c"]],
        [0, 6, ["v", "b", "c"]],
        [None, 0, "v"],
        [None, 0, [1]],
        [None, "0", ["v"]],
        [None, 0],
        [None, 0, ["v"], 1],
    ],
)
def test_a_value_is_in_one_place(place: list[Any]) -> None:
    """An entry is inline, a reference or a patch, and needs two value objects at most; any other is refused."""
    fields = _fields()
    fields["channels"]["greeting"][3:] = place
    with pytest.raises(CorruptObjectError, match="reading k"):
        decode_checkpoint(_object_of(fields), key="k")


@pytest.mark.parametrize("name", sorted(_fields()))
def test_headers_lack_no_field(name: str) -> None:
    """Every field is there, or the object is refused."""
    fields = _fields()
    del fields[name]
    with pytest.raises(CorruptObjectError, match="cannot be decoded"):
        _read_checkpoint(_object_of(fields))


@relaxed
@given(plain)
def test_a_header_that_is_something_else_is_refused(fields: object) -> None:
    """Sound msgpack that is no header is refused."""
    with pytest.raises(CorruptObjectError, match="cannot be decoded"):
        _read_checkpoint(_object_of(fields))


@relaxed
@given(st.sampled_from(sorted(_fields())), plain)
def test_fields_of_other_types_are_refused(name: str, value: object) -> None:
    """A field holds what it may hold, or the object is refused."""
    fields = _fields() | {name: value}
    try:
        header, _ = _read_checkpoint(_object_of(fields))  # type: ignore[misc]
    except CorruptObjectError:
        return
    assert encode_checkpoint(header, SMALLEST.payload)
    assert type(header.namespace) is type(header.checkpoint_id) is str
    assert header.channel_versions is not None
    assert header.values is not None


@pytest.mark.parametrize(
    "entry",
    [
        ["msgpack", 1, b"", 0],
        ["msgpack", 1, b"", 0, None, None],
        ["msgpack", -1, b"", 0, None],
        ["msgpack", 1, b"", -1, None],
        ["msgpack", 1, b"", None, None],
        ["msgpack", 1, b"", 0, "both"],
        ["msgpack", True, b"", 0, None],
        [b"msgpack", 1, b"", 0, None],
        ["msgpack", 1, "", 0, None],
        ["msgpack", 7, b"", 0, None],
        ["msgpack", 6, b"", 1, None],
        "entry",
        None,
    ],
)
def test_entries_that_are_none_are_refused(entry: object) -> None:
    """A value is in one place, inside the payload or in a value object."""
    with pytest.raises(CorruptObjectError):
        decode_checkpoint(_object_of(_fields() | {"channels": {"greeting": entry}}), key="k")


def test_metadata_and_other_keys_are_typed() -> None:
    """Serialized values have a type's name and bytes, nothing else."""
    for wrong in (["msgpack"], ["msgpack", "text"], [1, b""], [*packed(1), 1]):
        for fields in ({"metadata": wrong}, {"extra": {"name": wrong}}):
            with pytest.raises(CorruptObjectError, match="cannot be decoded"):
                decode_checkpoint(_object_of(_fields() | fields), key="k")
