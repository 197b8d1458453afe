"""Indexing a thread's checkpoints while it is written, so that readers find them in the manifest.

The put of a checkpoint whose depth is a multiple of 64 indexes the last 64. Nothing depends on it: what is not indexed
is found by the listing, read from its header, and indexed by the next reader that may write.
"""

from __future__ import annotations

from collections.abc import Sequence

from manifests.keys import Layout, past, segment_in
from manifests.segments import Row, encode_segment
from s3_saver.bucket import Put, every
from s3_saver.operations.listing import newest_first
from s3_saver.operations.survey import Describe, read_row
from s3_saver.refs import Ref

EVERY = 64


async def write_index(
    layout: Layout, ref: Ref, rows: Sequence[Row], describe: Describe, unique: str, *, ordered: bool
) -> None:
    """Index the last 64 checkpoints of the namespace, `ref` among them, of which `rows` are at hand.

    One round where all are, three where not.
    """
    if len(rows) < EVERY:
        rows = [*rows, *await _others(layout, ref, rows, describe, ordered)]
    await Put(segment_in(layout.thread(ref.thread_id), unique), encode_segment(rows))


async def _others(layout: Layout, ref: Ref, rows: Sequence[Row], describe: Describe, ordered: bool) -> list[Row]:
    assert ref.checkpoint_id is not None
    folder = layout.folder(ref.thread_id, ref.namespace, ref.checkpoint_id)
    namespace = layout.namespace(ref.thread_id, ref.namespace)
    listed = await newest_first(layout, namespace, count=EVERY - 1, after=past(folder), ordered=ordered)
    at_hand = {row.checkpoint_id for row in rows}
    heads = [head for head in listed.heads if layout.parse(head.checkpoint.key).checkpoint_id not in at_hand]
    found = await every(read_row(layout, head.checkpoint, describe) for head in heads)
    return [row for row in found if row is not None]
