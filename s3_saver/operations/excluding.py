"""Removals from a thread and copies into it keep out of each other's way.

Each puts a mark into the thread first, and lists the thread under it. A copy that finds a removal's mark gives way, and
a removal a copy's: whichever mark came second, its owner sees the other's. So a copy takes nothing for present that is
about to go, and nothing is removed by a listing that lacks what a copy has brought since.

A removal sends no deletion later than a quarter of the grace period after its mark. So a mark of twice that age is a
dead process's and counts no more.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from manifests.keys import Layout, removing_in
from s3_saver.bucket import Deadline, Now, Put
from s3_saver.errors import StoreUnavailableError
from s3_saver.operations.deleting import delete_keys
from s3_saver.operations.removing import Doomed, Overdue, remove, sweep, sweepable
from s3_saver.operations.survey import Describe, Index, Survey, index, read_index, survey

_ATTEMPTS_MAX = 10

# Which of a thread's checkpoints go. Asked again when the thread has changed; may raise `Refused`.
Decide = Callable[[Index], Awaitable[Sequence[Doomed]]]


class Refused(Exception):
    """The thread is left as it is; the message says why."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What a removal could not delete, with the store's reasons, and what is left of the thread's index."""

    failed: dict[str, str]
    index: Index


def refuse_copying(surveyed: Survey) -> None:
    if surveyed.of("copying"):
        raise Refused("a copy into it has not ended; call copy_thread again to finish it, or delete_thread to clear it")


def removals_under_way(surveyed: Survey, *, grace_ms: int) -> float | None:
    """For how many more milliseconds somebody may be removing checkpoints or values; None where nobody is."""
    left = [listed.modified_ms + grace_ms // 2 - surveyed.now_ms for listed in surveyed.of("removing")]
    return max((ms for ms in left if ms >= 0), default=None)


async def remove_and_sweep(
    layout: Layout,
    thread_folder: str,
    describe: Describe,
    decide: Decide,
    *,
    grace_ms: int,
    exclusive: bool = False,
    uniques: Iterator[str],
) -> Removed:
    """Remove the checkpoints that `decide` names, and sweep the thread, while no copy into it is under way.

    Rounds: those of `index` where nothing is to be done. Else the listing again, those of `remove` and `sweep`, and
    two for the mark.
    """
    found = await index(layout, thread_folder, describe)
    refuse_copying(found.survey)
    doomed = await decide(found)
    if not doomed and not sweepable(found, grace_ms=grace_ms, exclusive=exclusive):
        return Removed({}, found)
    for _ in range(_ATTEMPTS_MAX):
        mark = removing_in(thread_folder, next(uniques))
        deadline = Deadline(await Now(), grace_ms / 4000)
        await Put(mark, json.dumps({"format": 1, "began_ms": found.survey.now_ms}).encode() + b"\n")
        try:
            again = await _again(layout, found, describe)
            if again is not found:
                found, doomed = again, await decide(again)
            failed = await remove(thread_folder, doomed, deadline=deadline, uniques=uniques)
            failed |= await sweep(
                layout, thread_folder, describe, grace_ms=grace_ms, deadline=deadline, exclusive=exclusive
            )
        except Refused:
            await delete_keys([mark])
            raise
        except Overdue:
            await delete_keys([mark])
            continue
        # After any other error requests may still be under way, so the mark stays until it is too old to count.
        failed |= (await delete_keys([mark])).failed
        return Removed(failed, found.without(item.linked.folder for item in doomed))
    raise StoreUnavailableError(
        f"deleting below {thread_folder}: {_ATTEMPTS_MAX} attempts took too long; nothing is lost, try again"
    )


async def _again(layout: Layout, found: Index, describe: Describe) -> Index:
    """The thread's index by a new listing. Raises `Refused` where a copy has begun."""
    surveyed = await survey(layout, found.survey.folder)
    refuse_copying(surveyed)
    if surveyed.heads == found.survey.heads:
        return found
    return await read_index(layout, surveyed, describe) or await index(layout, found.survey.folder, describe)
