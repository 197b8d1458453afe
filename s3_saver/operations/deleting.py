"""Deleting any number of keys, and saying which stayed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from s3_saver.bucket import DELETE_KEYS_MAX, Deadline, Delete, Late, every
from s3_saver.errors import DeletionError


@dataclass(frozen=True, slots=True)
class Deletion:
    """What became of a deletion: keys that stayed with the store's reasons, and whether some were not sent in time."""

    failed: Mapping[str, str]
    late: bool


async def delete_keys(keys: Iterable[str], *, deadline: Deadline | None = None) -> Deletion:
    """Delete the keys, absent ones included. One round, none for no keys."""
    keys = list(keys)
    starts = range(0, len(keys), DELETE_KEYS_MAX)
    answers = await every(Delete(tuple(keys[start : start + DELETE_KEYS_MAX]), deadline) for start in starts)
    failed: dict[str, str] = {}
    for answer in answers:
        if not isinstance(answer, Late):
            failed |= answer.failed
    return Deletion(failed, any(isinstance(answer, Late) for answer in answers))


def refuse_leftovers(failed: Mapping[str, str], what: str) -> None:
    """Raise `DeletionError` where keys stayed. What could be deleted is gone by then."""
    if failed:
        key, reason = next(iter(failed.items()))
        raise DeletionError(
            f"{what}: {len(failed)} keys could not be deleted, the first is {key} ({reason}); the rest is done; see "
            ".failed for all, end the lock or get the right, then call again",
            failed,
        )
