"""Removal records: which checkpoints are about to be removed, why, and which value objects they referred to.

A record is put before the deletions that it announces. It lets a sweep know when a reference ended, and an auditor
tell a pruned checkpoint from a lost one. The law is FORMAT.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from manifests.tables import NAMES, TableFormat, column, decode_rows, encode_table

FORMAT = 1


class Removal(NamedTuple):
    """A checkpoint that goes. `sha256` is that of its object, where known; `values` are its value objects."""

    namespace: str
    checkpoint_id: str
    sha256: bytes | None
    values: tuple[str, ...]
    why: str


SCHEMA = pa.schema(
    [
        column(1, "namespace", pa.string()),
        column(2, "checkpoint_id", pa.string()),
        column(3, "sha256", pa.binary(), nullable=True),
        column(4, "values", NAMES),
        column(5, "why", pa.string()),
    ]
)

_RECORD = TableFormat(name="removals", version=FORMAT, schema=SCHEMA, stored=SCHEMA, advice="restore the object")


def encode_removals(removals: Sequence[Removal]) -> bytes:
    return encode_table(_RECORD, removals)


def decode_removals(data: bytes, *, key: str) -> list[Removal]:
    """Raises `UnsupportedFormatError` and `CorruptObjectError`: a sweep must not go on without a record."""
    return [Removal(*row) for row in decode_rows(_RECORD, data, key=key)]
