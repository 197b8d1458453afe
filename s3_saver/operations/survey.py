"""A whole thread as its listing and its manifest show it: what copies, prunes, deletions and filters start from.

The listing is the truth. A manifest row counts only for a listed object with the same ETag; what no segment has is read
from its header, and offered to be indexed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from manifests.checkpoints import Header
from manifests.keys import Layout, segment_in
from manifests.segments import Row, decode_segment, encode_segment, rows_in
from s3_saver.bucket import Body, Get, Listed, Put, Work, every
from s3_saver.errors import StoreUnavailableError
from s3_saver.operations.deleting import delete_keys
from s3_saver.operations.listing import Head, heads_of, keys_since
from s3_saver.operations.load import checked_header, read_head

_ATTEMPTS_MAX = 10
# Rows that are worth a segment of their own when a reader found them missing.
_HEAL_MIN = 16
# Segments of one size that are merged into one of the next.
_MERGE_MIN = 16
_TIER = 16

# A checkpoint's row, from its header, the size and ETag that its listing shows, and its bytes where all were read.
Describe = Callable[[Header, Listed, Body], Row]

# What all but filters need of a row.
LINKS = tuple(name for name in Row._fields if name not in ("metadata", "metadata_json", "ts", "source", "step"))


@dataclass(frozen=True)
class Survey:
    """A thread's listing. `now_ms` is the store's clock before it began."""

    folder: str
    now_ms: int
    heads: tuple[Head, ...]
    kinds: dict[str, list[Listed]]

    def of(self, kind: str) -> list[Listed]:
        return self.kinds.get(kind, [])


@dataclass
class Index:
    """The rows of a surveyed thread's checkpoints: those of segments by segment, and those read from headers."""

    layout: Layout
    survey: Survey
    segments: dict[str, pa.Table] = field(default_factory=dict)
    read: list[Row] = field(default_factory=list)

    def rows(self, columns: Sequence[str] = LINKS) -> Iterator[tuple[str, Row]]:
        """Every checkpoint's folder and row, in no order."""
        for table in self.segments.values():
            for row in rows_in(table, columns):
                yield self.folder(row), row
        for row in self.read:
            yield self.folder(row), row

    def without(self, folders: Iterable[str]) -> Index:
        """The same but for these checkpoints."""
        gone = frozenset(folders)
        if not gone:
            return self
        segments = {
            key: table.filter(
                pa.array(
                    [self.folder(row) not in gone for row in rows_in(table, ("namespace", "checkpoint_id"))], pa.bool_()
                )
            )
            for key, table in self.segments.items()
        }
        read = [row for row in self.read if self.folder(row) not in gone]
        return Index(self.layout, self.survey, segments, read)

    def folder(self, row: Row) -> str:
        return self.layout.folder_in(self.survey.folder, row.namespace, row.checkpoint_id)


async def survey(layout: Layout, thread_folder: str) -> Survey:
    """List the thread. Rounds: the pages of its listing."""
    keys, now_ms = await keys_since(thread_folder)
    kinds: dict[str, list[Listed]] = {}
    for listed in keys:
        kinds.setdefault(layout.kind(listed.key) or "", []).append(listed)
    return Survey(thread_folder, now_ms, tuple(heads_of(layout, keys)), kinds)


async def index(layout: Layout, thread_folder: str, describe: Describe) -> Index:
    """Survey the thread and find every checkpoint's row: one round for the segments, one for headers not in them."""
    for _ in range(_ATTEMPTS_MAX):
        found = await read_index(layout, await survey(layout, thread_folder), describe)
        if found is not None:
            return found
    raise StoreUnavailableError(f"reading the manifest of {thread_folder}: it changed {_ATTEMPTS_MAX} times; try again")


async def read_index(layout: Layout, surveyed: Survey, describe: Describe) -> Index | None:
    """The rows of a surveyed thread; None where a segment or a checkpoint vanished since: then survey again."""
    keys = [listed.key for listed in surveyed.of("segment")]
    bodies = await every(Get(key) for key in keys)
    if None in bodies:
        return None
    found = Index(layout, surveyed)
    listed = {head.folder: head.checkpoint for head in surveyed.heads}
    missing = dict(listed)
    here = {key: body.data for key, body in zip(keys, bodies, strict=True) if body is not None}
    await Work(lambda: _decode(found, here, listed, missing), sum(map(len, here.values())))
    for row in await every(read_row(layout, item, describe) for item in missing.values()):
        if row is None:
            return None
        found.read.append(row)
    return found


async def read_row(layout: Layout, listed: Listed, describe: Describe) -> Row | None:
    """A listed checkpoint's row, from its header; None where it was removed. One round, two for a long header."""
    head = await read_head(listed.key)
    return None if head is None else describe(checked_header(layout, head.data, key=listed.key), listed, head)


def _decode(found: Index, segments: dict[str, bytes], listed: dict[str, Listed], missing: dict[str, Listed]) -> None:
    for key, data in segments.items():
        found.segments[key] = _counting(found, decode_segment(data, key=key), listed, missing)


def _counting(found: Index, table: pa.Table, listed: dict[str, Listed], missing: dict[str, Listed]) -> pa.Table:
    """The rows of `table` that count and that no other segment had; they are no longer `missing`."""
    counting = []
    for number, row in enumerate(rows_in(table, ("namespace", "checkpoint_id", "etag"))):
        folder = found.folder(row)
        if folder in missing and listed[folder].etag == row.etag:
            counting.append(number)
            del missing[folder]
    return table.take(pa.array(counting, pa.int64()))


async def tend(found: Index, unique: str) -> None:
    """Index what was read from headers, and merge small segments: for readers that may write. At most three rounds.

    Nothing depends on it. Merging is a union, so two at once do no harm; a reader whose segment vanished lists again.
    """
    folder = found.survey.folder
    if len(found.read) >= _HEAL_MIN:
        await Put(segment_in(folder, unique), encode_segment(found.read))
    tiers: dict[int, list[str]] = {}
    for listed in found.survey.of("segment"):
        tiers.setdefault(_tier(listed.size), []).append(listed.key)
    for number, keys in tiers.items():
        if len(keys) >= _MERGE_MIN:
            tables = [found.segments[key] for key in keys]
            merged = [row for table in tables for row in rows_in(table)]
            # The union is there before its parts go.
            if merged:
                await Put(segment_in(folder, f"{unique}-{number}"), encode_segment(merged))
            # Those that cannot be deleted are rows that are there twice, which does no harm.
            await delete_keys(keys)


def _tier(size: int) -> int:
    """Which segments are of a size: each tier holds those up to sixteen times as large as the one before."""
    tier, bound = 0, 8192
    while size > bound:
        tier, bound = tier + 1, bound * _TIER
    return tier
