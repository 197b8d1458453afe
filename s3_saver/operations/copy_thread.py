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

from manifests.keys import Layout, checkpoint_in, copying_in, runs_in, segment_in, values_in
from manifests.segments import Row, encode_segment
from s3_saver.bucket import Copy, Get, Listed, Put, both, every
from s3_saver.errors import StoreUnavailableError, ThreadBusyError
from s3_saver.operations.deleting import delete_keys, refuse_leftovers
from s3_saver.operations.keep import Linked
from s3_saver.operations.listing import Head, all_keys
from s3_saver.operations.prune import by_namespace
from s3_saver.operations.put import run_line
from s3_saver.operations.removing import Doomed, remove, removed_folders
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

    Rounds: the pages of both listings and of the source's values, two for the source's manifest, one for the mark, one
    for names, one each for a thousand values, writes and checkpoints, two to end. Killed at any request, it can be
    called again.

    Raises ValueError where the target has a checkpoint that the source has not, and `ThreadBusyError` where the source
    of a copy that has begun is not there any more.
    """
    if source == target:
        return
    for _ in range(_ATTEMPTS_MAX):
        found = await index(layout, layout.thread(source), describe)
        if not found.survey.heads:
            await _refuse_lost_source(layout, source, target)
            return
        there = await _target(layout, found, source, target, describe, grace_ms, uniques)
        try:
            await _copy(layout, found, there, target, grace_ms, uniques)
        except _Vanished:
            continue
        return
    raise StoreUnavailableError(
        f"copying thread {source!r} to {target!r}: the source was pruned {_ATTEMPTS_MAX} times while it was copied; "
        "try again when the prune has ended"
    )


async def _begun(layout: Layout, source: str, target: str) -> bool:
    """Whether a copy of this source into the target has not ended."""
    mark = await Get(copying_in(layout.thread(target)))
    return mark is not None and json.loads(mark.data).get("source") == layout.thread_part(layout.thread(source))


async def _refuse_lost_source(layout: Layout, source: str, target: str) -> None:
    if await _begun(layout, source, target):
        raise ThreadBusyError(
            f"copying thread {source!r} to {target!r}: the source was deleted while it was copied, so what the target "
            f"has is not whole; call delete_thread({target!r})"
        )


async def _target(
    layout: Layout,
    found: Index,
    source: str,
    target: str,
    describe: Describe,
    grace_ms: int,
    uniques: Iterator[str],
) -> Survey:
    """The target's listing. It may hold what an earlier copy of this source brought, and nothing else.

    What a copy brought before it was killed, or before it met the gap of a prune, may have been pruned from the source
    since: that goes. Removal records tell it from what was put into the target.
    """
    folder = layout.thread(target)
    there = await survey(layout, folder)
    other = _not_in(found.survey, there)
    if not other:
        return there
    pruned: set[str] = set()
    if there.of("copying") and await _begun(layout, source, target):
        pruned = {_below(found.survey, name) for name in await removed_folders(layout, found.survey.folder)}
    if not {_below(there, head.folder) for head in other} <= pruned:
        raise ValueError(
            f"target_thread_id: thread {target!r} has {len(other)} checkpoints that {source!r} has not, the first is "
            f"{other[0].checkpoint.key}; copy to a new thread, or delete this one first"
        )
    members = by_namespace(await index(layout, folder, describe)).values()
    gone = {head.folder for head in other}
    items = [item for by_id in members for item in by_id.values() if item.folder in gone]
    doomed = [Doomed(item, "pruned in the source") for item in items]
    failed = await remove(folder, doomed, grace_seconds=grace_ms / 1000, uniques=uniques)
    refuse_leftovers(failed, f"copying to thread {target!r}")
    return await survey(layout, folder)


def _not_in(found: Survey, there: Survey) -> list[Head]:
    """The target's checkpoints that the source has not."""
    ours = {_below(found, head.folder) for head in found.heads}
    return [head for head in there.heads if _below(there, head.folder) not in ours]


def _below(surveyed: Survey, key: str) -> str:
    return key.removeprefix(surveyed.folder)


async def _copy(
    layout: Layout, found: Index, there: Survey, target: str, grace_ms: int, uniques: Iterator[str]
) -> None:
    folder = layout.thread(target)
    line = {"format": 1, "source": layout.thread_part(found.survey.folder), "began_ms": found.survey.now_ms}
    await Put(copying_in(folder), json.dumps(line).encode() + b"\n")
    # Values and markers come before the checkpoints that need them. A listing of many pages may have passed their
    # place before they came, and then meet the checkpoint: so they are listed again, after all that was found.
    values, runs = await both(all_keys(values_in(found.survey.folder)), all_keys(runs_in(found.survey.folder)))
    names = list(_names(layout, runs, target))
    if names:
        await every(names)
    copying = _Copying(found.survey, folder, _present(layout, there, grace_ms))
    await copying.all(listed.key for listed in values)
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


def _names(layout: Layout, runs: Iterable[Listed], target: str) -> Iterator[Put]:
    """What must be there before the target's first checkpoint: its name, and the markers of all runs."""
    name = layout.name(target)
    if name is not None:
        yield Put(name, target.encode())
    for listed in runs:
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
