"""Checkpoints as a listing shows them: newest first, each with the names of its writes batches.

Only the order of folders inside one namespace is relied on: all have the form `{D}.{ID}`, none is a prefix of another.
Stores differ in how they order folders of different lengths elsewhere. Directory buckets list in no order at all:
with `ordered=False`, whole threads are listed and sorted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from manifests.keys import Layout, id_of, past
from s3_saver.bucket import PAGE_KEYS_MAX, List, Listed

# Most listings end with their first page, which is small. Those that go on get larger pages.
_PAGE_GROWTH = 8


@dataclass(frozen=True, slots=True)
class Head:
    """A listed checkpoint: its folder's key, its object, and its writes batches in their order."""

    folder: str
    checkpoint: Listed
    writes: tuple[Listed, ...]


@dataclass(frozen=True, slots=True)
class Heads:
    """Some heads, newest first, and where the listing goes on; None at its end."""

    heads: tuple[Head, ...]
    after: str | None


def folder_of(key: str) -> str:
    return key[: key.rindex("/") + 1]


def heads_of(layout: Layout, keys: Iterable[Listed]) -> list[Head]:
    """Group sorted keys by folder. A folder without a checkpoint object is a checkpoint that is not there yet."""
    heads: dict[str, tuple[Listed, list[Listed]]] = {}
    for listed in keys:
        kind = layout.kind(listed.key)
        folder = folder_of(listed.key)
        if kind == "checkpoint":
            heads[folder] = listed, []
        elif kind == "writes" and folder in heads:
            heads[folder][1].append(listed)
    return [Head(folder, checkpoint, tuple(writes)) for folder, (checkpoint, writes) in heads.items()]


async def newest_first(
    layout: Layout, folder: str, *, count: int, after: str | None = None, ordered: bool = True
) -> Heads:
    """The first `count` heads in the namespace `folder` that come after the key `after`.

    One round where a page holds them. Each page full of orphaned writes, or of the last head's batches, is one more;
    pages grow, so that these are few.
    """
    if not ordered:
        return await _sorted(layout, folder, count=count, after=after)
    keys: list[Listed] = []
    limit = _page_limit(count)
    while True:
        page = await List(folder, after=after, limit=limit)
        limit = min(PAGE_KEYS_MAX, limit * _PAGE_GROWTH)
        keys.extend(page.keys)
        heads = heads_of(layout, keys)
        if page.token is None:
            return Heads(tuple(heads[:count]), past(heads[count - 1].folder) if len(heads) > count else None)
        last = keys[-1].key
        complete = [head for head in heads if head.folder != folder_of(last)]
        if len(complete) >= count:
            return Heads(tuple(complete[:count]), past(complete[count - 1].folder))
        # A folder without a checkpoint object where that would have been listed is orphaned: its rest can be skipped.
        is_head = bool(heads) and heads[-1].folder == folder_of(last)
        orphaned = not is_head and layout.kind(last) == "writes"
        after = past(folder_of(last)) if orphaned else last


def _page_limit(count: int) -> int:
    """Room for the checkpoints, a few batches each, and the key after them that shows the last to be complete."""
    return min(PAGE_KEYS_MAX, 4 * count + 8)


async def _sorted(layout: Layout, folder: str, *, count: int, after: str | None) -> Heads:
    # A directory bucket takes no prefix that ends inside a name, and no StartAfter.
    keys = [listed for listed in await all_keys(folder) if after is None or listed.key > after]
    heads = heads_of(layout, keys)
    return Heads(tuple(heads[:count]), past(heads[count - 1].folder) if len(heads) > count else None)


async def all_keys(prefix: str) -> list[Listed]:
    """All keys that start with `prefix`, sorted: as many rounds as pages."""
    keys, _ = await keys_since(prefix)
    return keys


async def keys_since(prefix: str) -> tuple[list[Listed], int]:
    """All keys that start with `prefix`, sorted, and the store's clock when it began to list them."""
    page = await List(prefix)
    keys, began_ms = list(page.keys), page.now_ms
    while page.token is not None:
        page = await List(prefix, token=page.token)
        keys.extend(page.keys)
    return sorted(keys, key=lambda listed: listed.key), began_ms


async def thread_heads(layout: Layout, thread_folder: str, *, ordered: bool = True) -> list[Head]:
    """All heads of a thread, newest first over all namespaces: as many rounds as its listing has pages."""
    prefix = f"{thread_folder}checkpoint_ns=" if ordered else thread_folder
    return newest_of(heads_of(layout, await all_keys(prefix)))


def newest_of(heads: Iterable[Head]) -> list[Head]:
    """The heads, newest first over all namespaces: their folders' names sort so."""
    return sorted(heads, key=lambda head: head.folder.split("/")[-2])


def id_of_head(head: Head) -> str:
    return id_of(head.folder.split("/")[-2])


# Every thread of a page is listed in the same round.
_THREADS_PAGE = 100


@dataclass(frozen=True, slots=True)
class Threads:
    """Some threads' folders, and the token of the next page; None at the end."""

    folders: tuple[str, ...]
    token: str | None


async def threads_page(layout: Layout, token: str | None, *, after: str | None = None) -> Threads:
    """A page of the threads that there are, from a token or behind a thread. A folder proves nothing to be in it."""
    start = None if after is None or token is not None else past(layout.thread(after))
    page = await List(layout.threads, after=start, token=token, delimiter="/", limit=_THREADS_PAGE)
    return Threads(tuple(folder for folder in page.folders if "/thread_id=" in folder), page.token)
