"""Listing checkpoints page by page: nothing is held at the store, or in flight, between two pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from manifests.checkpoints import HEADER_GUESS_BYTES, Header, header_length
from manifests.errors import CorruptObjectError
from manifests.keys import Layout, decode, past
from s3_saver.bucket import Body, Get, every
from s3_saver.operations.get_tuple import get_tuple
from s3_saver.operations.listing import Head, newest_first, thread_heads, threads_page
from s3_saver.operations.load import Loaded, checked_header, load
from s3_saver.refs import Ref

# Checkpoints that one page fetches at most: what is in memory at once, and what goes out in one round.
PAGE_MAX = 32
# Threads that are listed at once when all are.
_THREADS_MAX = 16

# Whether a checkpoint, known by its thread's id and its header, is wanted.
Accept = Callable[[str, Header], bool]


@dataclass(frozen=True, slots=True)
class Query:
    """What to list. None leaves open: all threads, all namespaces, any id, no upper bound, no condition."""

    thread_id: str | None = None
    namespace: str | None = None
    checkpoint_id: str | None = None
    before: str | None = None
    accept: Accept | None = None

    def wants(self, checkpoint_id: str) -> bool:
        return (self.before is None or checkpoint_id < self.before) and (
            self.checkpoint_id is None or checkpoint_id == self.checkpoint_id
        )


@dataclass
class Listing:
    """A listing under way. Await `page` until it returns None; a page may be empty.

    Rounds: one namespace, two a page (three with a condition). A thread, the pages of its listing first, and one a
    page of checkpoints from there on. Large values take one more.
    """

    layout: Layout
    query: Query
    ordered: bool = True
    _after: str | None = None
    _token: str | None = None
    _begun: bool = False
    _ended: bool = False
    _folders: deque[str] = field(default_factory=deque)
    _heads: deque[tuple[str, Head]] = field(default_factory=deque)

    async def page(self, count: int) -> list[Loaded] | None:
        """The next checkpoints, at most `count`; None at the end."""
        query = self.query
        if self._ended and not self._heads and not self._folders:
            return None
        if query.thread_id is not None and query.namespace is not None:
            if query.checkpoint_id is not None:
                return await self._exact(Ref(query.thread_id, query.namespace, query.checkpoint_id))
            return await self._in_namespace(query.thread_id, query.namespace, min(count, PAGE_MAX))
        if not self._heads:
            await self._more_heads()
        heads = [self._heads.popleft() for _ in range(min(count, PAGE_MAX, len(self._heads)))]
        return await self._load(heads)

    async def _exact(self, ref: Ref) -> list[Loaded]:
        self._ended = True
        if not self.query.wants(ref.checkpoint_id or ""):
            return []
        loaded = await get_tuple(self.layout, ref)
        accept = self.query.accept
        wanted = loaded is not None and (accept is None or accept(ref.thread_id, loaded.header))
        return [loaded] if loaded is not None and wanted else []

    async def _in_namespace(self, thread_id: str, namespace: str, count: int) -> list[Loaded]:
        if not self._begun and self.query.before is not None:
            # A listing that starts past the bound's folder holds smaller ids only; the bound need not exist.
            self._after = past(self.layout.folder(thread_id, namespace, self.query.before))
        self._begun = True
        folder = self.layout.namespace(thread_id, namespace)
        listed = await newest_first(
            self.layout,
            folder,
            count=PAGE_MAX if self.query.accept else count,
            after=self._after,
            ordered=self.ordered,
        )
        self._after, self._ended = listed.after, listed.after is None
        return await self._load([(thread_id, head) for head in listed.heads])

    async def _load(self, heads: Sequence[tuple[str, Head]]) -> list[Loaded]:
        if self.query.accept is not None:
            heads = await self._accepted(heads, self.query.accept)
        loaded = await every(load(self.layout, thread_id, head) for thread_id, head in heads)
        return [item for item in loaded if item is not None]

    async def _accepted(self, heads: Sequence[tuple[str, Head]], accept: Accept) -> list[tuple[str, Head]]:
        headers = await every(read_header(self.layout, head.checkpoint.key) for _, head in heads)
        return [
            (thread_id, head)
            for (thread_id, head), header in zip(heads, headers, strict=True)
            if header is not None and accept(thread_id, header)
        ]

    async def _more_heads(self) -> None:
        if self.query.thread_id is not None:
            self._ended = True
            found = [(self.query.thread_id, await self._thread(self.layout.thread(self.query.thread_id)))]
        else:
            found = await self._next_threads()
        for thread_id, heads in found:
            self._heads.extend(
                (thread_id, head)
                for head in heads
                if self.query.wants(self.layout.parse(head.checkpoint.key).checkpoint_id)
            )

    async def _thread(self, folder: str) -> list[Head]:
        return await thread_heads(self.layout, folder, ordered=self.ordered)

    async def _next_threads(self) -> list[tuple[str, list[Head]]]:
        if not self._folders:
            page = await threads_page(self.layout, self._token)
            self._token, self._ended = page.token, page.token is None
            self._folders.extend(page.folders)
        folders = [self._folders.popleft() for _ in range(min(_THREADS_MAX, len(self._folders)))]
        heads = await every(self._thread(folder) for folder in folders)
        there = [(folder, found) for folder, found in zip(folders, heads, strict=True) if found]
        names = await every(thread_name(self.layout, folder) for folder, _ in there)
        return [(name, found) for name, (_, found) in zip(names, there, strict=True) if name is not None]


async def thread_name(layout: Layout, folder: str) -> str | None:
    """The id of the thread in `folder`: no round, or one where only its hash is in the key, two where that is missing.

    None where the thread was deleted while another process still stored into it.
    """
    name = decode(layout.thread_part(folder))
    if name is not None:
        return name
    stored = await Get(layout.name_in(folder))
    # Asked for together with the name, the tombstone could be looked for before it was put, the name after it went.
    if stored is None and await Get(layout.deleted_in(folder)) is not None:
        return None
    if stored is None:
        raise CorruptObjectError(
            f"reading {layout.name_in(folder)}: it is not there, so the id of this thread is not known; store the id under that "
            "key again, or delete the folder"
        )
    return stored.data.decode()


async def read_header(layout: Layout, key: str) -> Header | None:
    """The header of the checkpoint object at `key`, None where it was removed. One round, two for a long header."""
    found = await read_head(key)
    return None if found is None else checked_header(layout, found.data, key=key)


async def read_head(key: str) -> Body | None:
    """The first bytes of a checkpoint object, its header among them; None where it was removed."""
    found = await Get(key, first_bytes=HEADER_GUESS_BYTES)
    if found is None or found.whole or header_length(found.data, key=key) <= len(found.data):
        return found
    return await Get(key)
