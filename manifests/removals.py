"""Removal records: which checkpoints are about to be removed, why, and which value objects they referred to.

A record is put before the deletions that it announces. It lets a sweep know when a reference ended, and an auditor
tell a pruned checkpoint from a lost one. The law is FORMAT.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from manifests.tables import NAMES, column, read_table, table_of, write_table

FORMAT = 1
_KIND = "removals"


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


def encode_removals(removals: Sequence[Removal]) -> bytes:
    return write_table(table_of(SCHEMA, removals), SCHEMA, kind=_KIND, version=FORMAT)


def decode_removals(data: bytes, *, key: str) -> list[Removal]:
    """Raises `UnsupportedFormatError` and `CorruptObjectError`: a sweep must not go on without a record."""
    table = read_table(data, SCHEMA, kind=_KIND, version=FORMAT, key=key, advice="restore the object")
    columns = [values.to_pylist() for values in table.columns]
    return [Removal(ns, id_, sha, tuple(values), why) for ns, id_, sha, values, why in zip(*columns, strict=True)]
