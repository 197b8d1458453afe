"""Copying a thread inside its bucket: by the store, in parallel, no bytes through the client.

The order: a mark that a copy is under way; names and run markers; large values; writes; checkpoints; the manifest; the
mark goes last. Checkpoints go parents first. Copies of one round may end in any order, so after a crash a child can be
there without its parent: the mark says so, and whoever follows parents into the gap is told (`delta_history`).
While the mark stands, a rerun finishes the target, `delete_thread` clears it, and a prune refuses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from manifests.keys import Layout, checkpoint_in, copying_in, segment_in
from manifests.segments import Row, encode_segment
from s3_saver.bucket import Copy, Put, every
from s3_saver.errors import StoreUnavailableError
from s3_saver.operations.deleting import delete_keys, refuse_leftovers
from s3_saver.operations.keep import Linked
from s3_saver.operations.prune import by_namespace
from s3_saver.operations.put import run_line
from s3_saver.operations.survey import Describe, Index, Survey, index, survey

_ATTEMPTS_MAX = 10
# Copies in one round. A round's answers are in memory at once.
_ROUND = 1000


class _Vanished(Exception):
    """A source object is gone: the source was pruned or deleted meanwhile."""


async def copy_thread(
    layout: Layout, source: str, target: str, describe: Describe, *, grace_ms: int, uniques: Iterator[str]
) -> None:
    """Copy all of `source` to `target`. A source that is not there, or the target itself, is left alone.

    Rounds: the pages of both listings, two for the source's manifest, one for the mark, one for names, one each for a
    thousand values, writes and checkpoints, two to end. Killed at any request, it can be called again.

    Raises ValueError where the target has a checkpoint that the source has not.
    """
    if source == target:
        return
    for _ in range(_ATTEMPTS_MAX):
        found = await index(layout, layout.thread(source), describe)
        if not found.survey.heads:
            return
        there = await survey(layout, layout.thread(target))
        _refuse_other(found.survey, there, source, target)
        try:
            await _copy(layout, found, there, source, target, grace_ms, uniques)
        except _Vanished:
            continue
        return
    raise StoreUnavailableError(
        f"copying thread {source!r} to {target!r}: the source was pruned {_ATTEMPTS_MAX} times while it was copied; "
        "try again when the prune has ended"
    )


def _refuse_other(found: Survey, there: Survey, source: str, target: str) -> None:
    """A target may hold what an earlier copy of this source brought, and nothing else."""
    ours = {_below(found, head.checkpoint.key) for head in found.heads}
    other = [head.checkpoint.key for head in there.heads if _below(there, head.checkpoint.key) not in ours]
    if other:
        raise ValueError(
            f"target_thread_id: thread {target!r} has {len(other)} checkpoints that {source!r} has not, the first is "
            f"{other[0]}; copy to a new thread, or delete this one first"
        )


def _below(surveyed: Survey, key: str) -> str:
    return key.removeprefix(surveyed.folder)


async def _copy(
    layout: Layout, found: Index, there: Survey, source: str, target: str, grace_ms: int, uniques: Iterator[str]
) -> None:
    folder = layout.thread(target)
    line = {"format": 1, "source": layout.thread_part(found.survey.folder), "began_ms": found.survey.now_ms}
    await Put(copying_in(folder), json.dumps(line).encode() + b"\n")
    names = list(_names(layout, found.survey, target))
    if names:
        await every(names)
    copying = _Copying(found.survey, folder, _present(layout, there, grace_ms))
    await copying.all(listed.key for listed in found.survey.of("value"))
    await copying.all(listed.key for listed in found.survey.of("writes"))
    # From here on checkpoints become visible.
    await copying.all(item.key for members in by_namespace(found).values() for item in parents_first(members))
    rows = [
        row._replace(etag=copying.stored[checkpoint_in(at)])
        for at, row in found.rows(Row._fields)
        if checkpoint_in(at) in copying.stored
    ]
    if rows:
        await Put(segment_in(folder, next(uniques)), encode_segment(rows))
    deletion = await delete_keys([copying_in(folder)])
    refuse_leftovers(deletion.failed, f"ending the copy to thread {target!r}")


def _names(layout: Layout, source: Survey, target: str) -> Iterator[Put]:
    """What must be there before the target's first checkpoint: its name, and the markers of all runs."""
    name = layout.name(target)
    if name is not None:
        yield Put(name, target.encode())
    for listed in source.of("run"):
        run = layout.parse(listed.key).name
        line = run_line(layout.thread_part(layout.thread(target)), run)
        yield Put(layout.marker(target, run), line)
        yield Put(layout.run(target, run), line)


def _present(layout: Layout, there: Survey, grace_ms: int) -> set[str]:
    """What need not be copied again, below the thread's folder."""
    # A value that was copied long ago may be swept at any moment: nothing in the target refers to it yet.
    old = there.now_ms - grace_ms // 4
    values = [listed for listed in there.of("value") if listed.modified_ms > old]
    return {_below(there, listed.key) for listed in (*values, *there.of("writes"), *there.of("checkpoint"))}


def parents_first(members: Mapping[str, Linked]) -> list[Linked]:
    """The checkpoints of a namespace, each after its parent; a parent's id may be the greater one."""
    ordered: dict[str, Linked] = {}
    for checkpoint_id in sorted(members):
        chain = []
        while checkpoint_id in members and checkpoint_id not in ordered and checkpoint_id not in chain:
            chain.append(checkpoint_id)
            checkpoint_id = members[checkpoint_id].row.parent_id or ""
        ordered.update((name, members[name]) for name in reversed(chain))
    return list(ordered.values())


@dataclass
class _Copying:
    """Copies of a source's objects into a target's folder. `stored` has the new ETag by the source's key."""

    source: Survey
    folder: str
    present: set[str]
    stored: dict[str, str] = field(default_factory=dict)

    async def all(self, keys: Iterable[str]) -> None:
        """Copy the objects that are not there yet, in this order, a round at a time."""
        missing = [key for key in keys if _below(self.source, key) not in self.present]
        for start in range(0, len(missing), _ROUND):
            part = missing[start : start + _ROUND]
            answers = await every(Copy(key, self.folder + _below(self.source, key)) for key in part)
            for key, answer in zip(part, answers, strict=True):
                if answer is None:
                    raise _Vanished(key)
                self.stored[key] = answer.etag
