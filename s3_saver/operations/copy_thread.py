"""Copying a thread inside its bucket: by the store, in parallel, no bytes through the client.

The order: a mark that a copy is under way; names and run markers; large values; writes; checkpoints; the manifest; the
mark goes last. Checkpoints go parents first. Copies of one round may end in any order, so after a crash a child can be
there without its parent: the mark says so, and whoever follows parents into the gap is told (`delta_history`).
While the mark stands, a rerun finishes the target, `delete_thread` clears it, and removals refuse (`excluding`). The
target is listed under the mark, and again before the mark goes: what was deleted meanwhile is copied again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from manifests.keys import Layout, checkpoint_in, copying_in, runs_in, segment_in, values_in
from manifests.segments import Row, encode_segment
from s3_saver.bucket import Body, Copy, Deadline, Get, Listed, Now, Put, both, every
from s3_saver.errors import StoreUnavailableError, ThreadBusyError
from s3_saver.operations.deleting import delete_keys, refuse_leftovers
from s3_saver.operations.excluding import removals_under_way
from s3_saver.operations.keep import Linked, by_namespace
from s3_saver.operations.listing import Head, all_keys
from s3_saver.operations.put import run_line
from s3_saver.operations.removing import Doomed, Overdue, remove, removed_folders
from s3_saver.operations.survey import Describe, Index, Survey, index, survey

_ATTEMPTS_MAX = 10
# Copies in one round. A round's answers are in memory at once.
_ROUND = 1000


class _Changed(Exception):
    """The source or the target changed meanwhile: begin again, with what there is now."""


async def copy_thread(
    layout: Layout, source: str, target: str, describe: Describe, *, grace_ms: int, uniques: Iterator[str]
) -> None:
    """Copy all of `source` to `target`. A source that is not there, or the target itself, is left alone.

    Rounds: the pages of the source's listing and of its values, and three times those of the target's; two for the
    source's manifest, one for the mark, one for names, one each for a thousand values, writes and checkpoints, two to
    end. Killed at any request, it can be called again.

    Raises ValueError where the target has a checkpoint that the source has not, or has with other content, and
    `ThreadBusyError` where the target is being pruned, the source is itself being copied to, or the source of a copy
    that has begun is not there any more.
    """
    if source == target:
        return
    job = _Job(layout, source, target, describe, grace_ms, uniques)
    for _ in range(_ATTEMPTS_MAX):
        try:
            await job.attempt()
        except (_Changed, Overdue):
            continue
        return
    raise StoreUnavailableError(
        f"{job}: the source or the target was pruned or deleted {_ATTEMPTS_MAX} times while it was copied; try again "
        "when that has ended"
    )


@dataclass(frozen=True, slots=True)
class _Job:
    """What is to be copied where."""

    layout: Layout
    source: str
    target: str
    describe: Describe
    grace_ms: int
    uniques: Iterator[str]

    def __str__(self) -> str:
        return f"copying thread {self.source!r} to {self.target!r}"

    @property
    def folder(self) -> str:
        return self.layout.thread(self.target)

    async def attempt(self) -> None:
        found = await self._whole_source()
        if not found.survey.heads:
            await self._refuse_lost_source()
            return
        before = await survey(self.layout, self.folder)
        begun = bool(before.of("copying")) and await self._begun()
        await self._check(found, before, begun=begun)
        line = self._line(found)
        await Put(copying_in(self.folder), line)
        try:
            there = await self._ready(found, begun=begun)
        except (ThreadBusyError, ValueError):
            # Refused, so the target is left as it was.
            if not before.of("copying"):
                await delete_keys([copying_in(self.folder)])
            raise
        await self._copy(found, there)
        await self._end(found, line)

    def _line(self, found: Index) -> bytes:
        """What the mark says. Its unique part tells ours from another process's copy into the same thread."""
        source = self.layout.thread_part(found.survey.folder)
        line = {"format": 1, "source": source, "began_ms": found.survey.now_ms, "unique": next(self.uniques)}
        return json.dumps(line).encode() + b"\n"

    # The source

    async def _whole_source(self) -> Index:
        """The source's index: all that is there, with no gaps that a copy into it has yet to fill."""
        found = await index(self.layout, self.layout.thread(self.source), self.describe)
        there = {head.folder for head in found.survey.heads}
        named = {found.folder(row._replace(checkpoint_id=row.parent_id)) for _, row in found.rows() if row.parent_id}
        gaps = sorted(named - there)
        # A listing of many pages may have passed the mark's place before a copy began, and then meet what it brought.
        mark = await Get(copying_in(found.survey.folder)) if gaps and not found.survey.of("copying") else None
        if found.survey.of("copying") or mark is not None:
            raise ThreadBusyError(
                f"{self}: a copy into the source has not ended, so it is not whole; finish that one first, by calling "
                "it again"
            )
        if any(await every(Get(checkpoint_in(folder), first_bytes=1) for folder in gaps)):
            raise _Changed(found.survey.folder)
        return found

    async def _begun(self) -> bool:
        """Whether a copy of this source into the target has not ended."""
        mark = await Get(copying_in(self.folder))
        return mark is not None and self._is_ours(mark)

    def _is_ours(self, mark: Body) -> bool:
        """Whether a mark is of a copy of the same source."""
        source = self.layout.thread_part(self.layout.thread(self.source))
        return bool(json.loads(mark.data).get("source") == source)

    async def _refuse_lost_source(self) -> None:
        if await self._begun():
            raise ThreadBusyError(
                f"{self}: the source was deleted while it was copied, so what the target has is not whole; call "
                f"delete_thread({self.target!r})"
            )

    # The target

    async def _check(self, found: Index, there: Survey, *, begun: bool) -> list[Head]:
        """The target's checkpoints that are to go, since they were pruned from the source after a copy had begun.

        It may hold what an earlier copy of this source brought, and nothing else. Removal records tell what was pruned
        from what was put into the target.
        """
        other = _not_in(found.survey, there)
        pruned: set[str] = set()
        if other and begun:
            pruned = {_below(found.survey, name) for name in await removed_folders(self.layout, found.survey.folder)}
        if not {_below(there, head.folder) for head in other} <= pruned:
            raise ValueError(
                f"target_thread_id: thread {self.target!r} has {len(other)} checkpoints that {self.source!r} has not, "
                f"the first is {other[0].checkpoint.key}; copy to a new thread, or delete this one first"
            )
        unlike = await _unlike(found.survey, there)
        if unlike is not None:
            raise ValueError(
                f"target_thread_id: thread {self.target!r} has another checkpoint {unlike} than {self.source!r} has "
                "under this id; copy to a new thread, or delete this one first"
            )
        return other

    async def _ready(self, found: Index, *, begun: bool) -> Survey:
        """The target under the mark, where nobody removes from it.

        What was pruned from the source since an earlier copy brought it goes here.
        """
        there = await survey(self.layout, self.folder)
        left_ms = removals_under_way(there, grace_ms=self.grace_ms)
        if left_ms is not None:
            raise ThreadBusyError(
                f"{self}: checkpoints are being removed from the target; try again when that has ended, or in "
                f"{left_ms / 60_000:.0f} minutes where its process has died"
            )
        gone = {head.folder for head in await self._check(found, there, begun=begun)}
        if not gone:
            return there
        deadline = Deadline(await Now(), self.grace_ms / 4000)
        members = by_namespace(await index(self.layout, self.folder, self.describe)).values()
        items = [item for by_id in members for item in by_id.values() if item.folder in gone]
        doomed = [Doomed(item, "pruned in the source") for item in items]
        failed = await remove(self.folder, doomed, deadline=deadline, uniques=self.uniques)
        refuse_leftovers(failed, str(self))
        return await survey(self.layout, self.folder)

    async def _copy(self, found: Index, there: Survey) -> None:
        # Values and markers come before the checkpoints that need them. A listing of many pages may have passed their
        # place before they came, and then meet the checkpoint: so they are listed again, after all that was found.
        values, runs = await both(all_keys(values_in(found.survey.folder)), all_keys(runs_in(found.survey.folder)))
        names = list(_names(self.layout, runs, self.target))
        if names:
            await every(names)
        copying = _Copying(found.survey, self.folder, _present(self.layout, there, self.grace_ms))
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
            await Put(segment_in(self.folder, next(self.uniques)), encode_segment(rows))

    async def _end(self, found: Index, line: bytes) -> None:
        """Take the mark away, where all is there; else somebody has deleted, or ended a copy of his own, meanwhile."""
        mark, there = await both(Get(copying_in(self.folder)), survey(self.layout, self.folder))
        if mark is None or not _has_all(there, found.survey):
            raise _Changed(self.folder)
        if mark.data != line:
            # Another process copies here too. It has put its mark over ours, and will take it away.
            if self._is_ours(mark):
                return
            raise _Changed(self.folder)
        deletion = await delete_keys([copying_in(self.folder)])
        refuse_leftovers(deletion.failed, f"ending the copy to thread {self.target!r}")


def _not_in(found: Survey, there: Survey) -> list[Head]:
    """The target's checkpoints that the source has not."""
    ours = {_below(found, head.folder) for head in found.heads}
    return [head for head in there.heads if _below(there, head.folder) not in ours]


def _has_all(there: Survey, found: Survey) -> bool:
    return {_below(found, head.folder) for head in found.heads} <= {_below(there, head.folder) for head in there.heads}


async def _unlike(found: Survey, there: Survey) -> str | None:
    """The key of a checkpoint of the target that is not the source's of the same id; None where there is none.

    No round, or one where ETags differ: they do where the store encrypts with keys of its own, and so do not tell.
    """
    ours = {_below(found, head.folder): head.checkpoint for head in found.heads}
    pairs = [
        (ours[name], head.checkpoint)
        for head in there.heads
        if (name := _below(there, head.folder)) in ours and ours[name].etag != head.checkpoint.etag
    ]
    different = next((theirs.key for mine, theirs in pairs if mine.size != theirs.size), None)
    if different is not None:
        return different
    bodies = await every(both(Get(mine.key), Get(theirs.key)) for mine, theirs in pairs)
    for (_, theirs), (one, other) in zip(pairs, bodies, strict=True):
        if one is None or other is None:
            raise _Changed(theirs.key)
        if one.data != other.data:
            return theirs.key
    return None


def _below(surveyed: Survey, key: str) -> str:
    return key.removeprefix(surveyed.folder)


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
                    raise _Changed(key)
                self.stored[key] = answer.etag
