"""zstd frames, and what all objects of the archive's own formats have at their start: a magic and a format byte.

A frame may be a patch: compressed with another value's bytes as its dictionary, it holds little more than what differs.
"""

from __future__ import annotations

import zstandard

from manifests.errors import CorruptObjectError, UnsupportedFormatError

FORMAT = 1
RESTORE = "restore the object or delete the checkpoint"
# A patch and its dictionary lie in one window, and readers take windows of at most 128 MiB.
PATCHED_BYTES_MAX = 32 * 2**20

_LEVEL = 3
_WINDOW_LOG_MIN = 10
# zstd looks at no more of a dictionary than eight bytes for each place in its hash table.
_HASH_LOG_MIN, _HASH_LOG_MAX = 17, 22
_CHUNK_BYTES = 2**20


def compress(data: bytes, base: bytes | None = None) -> bytes:
    """A frame of `data` with a content checksum; with a `base` it is a patch, which only `base` can undo."""
    # One compressor a call: they are not safe to share between threads, and making one costs microseconds.
    if base is None:
        return zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True).compress(data)
    size = len(data) + len(base)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        _LEVEL,
        source_size=size,
        window_log=max(_WINDOW_LOG_MIN, size.bit_length()),
        hash_log=min(_HASH_LOG_MAX, max(_HASH_LOG_MIN, size.bit_length() - 2)),
        write_checksum=True,
    )
    return zstandard.ZstdCompressor(dict_data=_dictionary(base), compression_params=parameters).compress(data)


def decompress(frame: bytes, base: bytes | None = None, *, key: str) -> bytes:
    """The content of `frame`. Raises `CorruptObjectError` for anything but one whole frame, and for a wrong `base`."""
    # As a stream, memory grows with what is there; a damaged frame may claim to hold terabytes.
    decompressor = zstandard.ZstdDecompressor(dict_data=None if base is None else _dictionary(base))
    stream = decompressor.decompressobj(write_size=_CHUNK_BYTES)
    try:
        raw: bytes = stream.decompress(frame)
    except zstandard.ZstdError as error:
        raise CorruptObjectError(f"reading {key}: {error}; {RESTORE}") from error
    if not stream.eof or stream.unused_data:
        raise CorruptObjectError(f"reading {key}: a zstd frame is cut off, or something follows it; {RESTORE}")
    return raw


def _dictionary(base: bytes) -> zstandard.ZstdCompressionDict:
    return zstandard.ZstdCompressionDict(base, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def check_format(magic: bytes, version: int, expected: bytes, kind: str, key: str) -> None:
    """Raises unless an object starts as one of its kind does."""
    if magic != expected:
        raise CorruptObjectError(f"reading {key}: it starts with {magic!r}, a {kind} object with {expected!r}")
    if version != FORMAT:
        raise UnsupportedFormatError(
            f"reading {key}: {kind} format {version}, this release reads format {FORMAT}; upgrade the package"
        )
