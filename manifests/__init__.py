"""The archive's format: keys, checkpoints, values, writes batches, manifest segments and removal records.

This package knows neither LangGraph nor S3 and does no I/O, so an analytics job can read an archive with it where
nothing else is installed. Its law is `FORMAT.md`, beside this file.
"""

from manifests.checkpoints import (
    Checkpoint,
    Entry,
    Header,
    Typed,
    decode_checkpoint,
    decode_header,
    encode_checkpoint,
)
from manifests.errors import ArchiveError, CorruptObjectError, UnsupportedFormatError
from manifests.keys import Layout, ObjectKey
from manifests.structure import to_json
from manifests.values import base_of, check_digest, decode_value, encode_value, resolver, value_of
from manifests.writes import WriteRow, decode_writes, encode_writes, merge_writes

__all__ = [
    "ArchiveError",
    "Checkpoint",
    "CorruptObjectError",
    "Entry",
    "Header",
    "Layout",
    "ObjectKey",
    "Typed",
    "UnsupportedFormatError",
    "WriteRow",
    "base_of",
    "check_digest",
    "decode_checkpoint",
    "decode_header",
    "decode_value",
    "decode_writes",
    "encode_checkpoint",
    "encode_value",
    "encode_writes",
    "merge_writes",
    "resolver",
    "to_json",
    "value_of",
]
