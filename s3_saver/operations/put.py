"""Storing a checkpoint, and pending writes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from manifests.keys import Layout
from s3_saver.bucket import ABSENT, Body, Deadline, Get, Late, Put, Refused, Stored, every
from s3_saver.errors import S3SaverError, StoreUnavailableError
from s3_saver.refs import Ref

_ATTEMPTS_MAX = 5


async def put(
    key: str,
    body: bytes,
    *,
    before: Sequence[Put] = (),
    beside: Sequence[Put] = (),
    deadline: Deadline | None = None,
) -> tuple[Stored | Late | Body, bool]:
    """Store the checkpoint object at `key`, after `before` (names, markers, large values). One round, or two.

    Returns `Stored` where it is stored now, the `Body` that was there before where there was one, and `Late` where
    `deadline` passed first. In the last two cases nothing is changed but that other parts may be orphaned.
    `beside` are stored in the same round; nothing depends on them. The second answer says whether they are there.
    """
    if before:
        await every(before)
    commit = Put(key, body, expect=ABSENT, deadline=deadline)
    for _ in range(_ATTEMPTS_MAX):
        # The commit point: the checkpoint becomes visible, with all that it needs.
        try:
            answer, *_ = await every([commit, *beside])
        except S3SaverError:
            if not beside:
                raise
            # Which of them failed is not known. Alone the checkpoint is stored, refused since it is, or fails too.
            beside = ()
            continue
        if not isinstance(answer, Refused):
            return answer, bool(beside)
        # Refused is no conflict yet: our own first try may have landed, its answer lost.
        stored = await Get(key)
        if stored is not None:
            return stored, bool(beside)
    raise StoreUnavailableError(f"storing {key}: it appeared and vanished {_ATTEMPTS_MAX} times; try again")


def run_line(thread: str, run: str) -> bytes:
    """What a run's markers say: a line of JSON. Both parts as they stand in keys."""
    return json.dumps({"format": 1, "thread": thread, "run": run}).encode() + b"\n"


async def put_writes(key: str, body: bytes) -> None:
    """Store a batch of writes. Its key is new, so a repeated request changes nothing. One round."""
    await Put(key, body)


async def get_parent(layout: Layout, ref: Ref) -> Body | None:
    """The object of a checkpoint that a new one builds on. It need not exist. One round."""
    assert ref.checkpoint_id is not None
    return await Get(layout.checkpoint(ref.thread_id, ref.namespace, ref.checkpoint_id))
