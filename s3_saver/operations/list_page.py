"""Listing checkpoints page by page: nothing is held at the store, or in flight, between two pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from manifests.checkpoints import Typed
from manifests.errors import CorruptObjectError
from manifests.keys import Layout, decode, past
from s3_saver.bucket import Get, every
from s3_saver.operations.get_tuple import get_tuple
from s3_saver.operations.listing import Head, id_of_head, newest_first, newest_of, thread_heads, threads_page
from s3_saver.operations.load import Loaded, load
from s3_saver.operations.survey import Describe, Index, index
from s3_saver.refs import Ref

# Checkpoints that one page fetches at most: what is in memory at once, and what goes out in one round.
PAGE_MAX = 32
# Threads that are listed at once when all are.
_THREADS_MAX = 16

# Whether a checkpoint is wanted, by its thread's id, its metadata, and whether that leaves out the thread's id.
Accept = Callable[[str, Typed, bool], bool]


@dataclass(frozen=True, slots=True)
class Query:
    """What to list. None leaves open: all threads, all namespaces, any id, no upper bound, no condition."""

    thread_id: str | None = None
    namespace: str | None = None
    checkpoint_id: str | None = None
    before: str | None = None
    accept: Accept | None = None

    def wants(self, namespace: str, checkpoint_id: str) -> bool:
        return (
            (self.namespace is None or namespace == self.namespace)
            and (self.before is None or checkpoint_id < self.before)
            and (self.checkpoint_id is None or checkpoint_id == self.checkpoint_id)
        )


@dataclass
class Listing:
    """A listing under way. Await `page` until it returns None; a page may be empty.

    Rounds: one namespace, two a page. Whole threads, the pages of their listings first, and one a page of checkpoints
    from there on. With a condition, also those of the manifest: metadata is looked at there, and only what is wanted
    is fetched. Large values take one more. `indexes` are the manifests that were read, for whoever may tend them.
    """

    layout: Layout
    query: Query
    describe: Describe
    ordered: bool = True
    indexes: list[Index] = field(default_factory=list)
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
            if query.accept is None:
                return await self._in_namespace(query.thread_id, query.namespace, min(count, PAGE_MAX))
        if not self._heads:
            await self._more_heads()
        heads = [self._heads.popleft() for _ in range(min(count, PAGE_MAX, len(self._heads)))]
        return await self._load(heads)

    async def _exact(self, ref: Ref) -> list[Loaded]:
        self._ended = True
        if not self.query.wants(ref.namespace, ref.checkpoint_id or ""):
            return []
        loaded = await get_tuple(self.layout, ref)
        if loaded is None:
            return []
        header, accept = loaded.header, self.query.accept
        wanted = accept is None or accept(ref.thread_id, header.metadata, header.metadata_thread_id)
        return [loaded] if wanted else []

    async def _in_namespace(self, thread_id: str, namespace: str, count: int) -> list[Loaded]:
        if not self._begun and self.query.before is not None:
            # A listing that starts past the bound's folder holds smaller ids only; the bound need not exist.
            self._after = past(self.layout.folder(thread_id, namespace, self.query.before))
        self._begun = True
        folder = self.layout.namespace(thread_id, namespace)
        listed = await newest_first(self.layout, folder, count=count, after=self._after, ordered=self.ordered)
        self._after, self._ended = listed.after, listed.after is None
        return await self._load([(thread_id, head) for head in listed.heads])

    async def _load(self, heads: Sequence[tuple[str, Head]]) -> list[Loaded]:
        loaded = await every(load(self.layout, thread_id, head) for thread_id, head in heads)
        return [item for item in loaded if item is not None]

    async def _more_heads(self) -> None:
        if self.query.thread_id is not None:
            self._ended = True
            found = await self._thread(self.layout.thread(self.query.thread_id))
            self._heads.extend((self.query.thread_id, head) for head in self._wanted(self.query.thread_id, found))
            return
        if not self._folders:
            page = await threads_page(self.layout, self._token)
            self._token, self._ended = page.token, page.token is None
            self._folders.extend(page.folders)
        folders = [self._folders.popleft() for _ in range(min(_THREADS_MAX, len(self._folders)))]
        threads = await every(self._thread(folder) for folder in folders)
        there = [(folder, found) for folder, found in zip(folders, threads, strict=True) if _heads_of(found)]
        names = await every(thread_name(self.layout, folder) for folder, _ in there)
        for name, (_, found) in zip(names, there, strict=True):
            if name is not None:
                self._heads.extend((name, head) for head in self._wanted(name, found))

    async def _thread(self, folder: str) -> Index | list[Head]:
        """A thread's manifest where there is a condition on metadata, else its heads."""
        if self.query.accept is None:
            return await thread_heads(self.layout, folder, ordered=self.ordered)
        found = await index(self.layout, folder, self.describe)
        self.indexes.append(found)
        return found

    def _wanted(self, thread_id: str, found: Index | list[Head]) -> list[Head]:
        """The heads that the query wants, newest first over all namespaces."""
        heads = newest_of(_heads_of(found))
        if isinstance(found, Index) and self.query.accept is not None:
            accept, wants = self.query.accept, self.query.wants
            wanted = {
                folder
                for folder, row in found.rows(_FILTERED)
                if wants(row.namespace, row.checkpoint_id)
                and accept(thread_id, row.typed_metadata, row.metadata_thread_id)
            }
            return [head for head in heads if head.folder in wanted]
        return [head for head in heads if self.query.wants(self.query.namespace or "", id_of_head(head))]


_FILTERED = ("namespace", "checkpoint_id", "metadata_type", "metadata", "metadata_thread_id")


def _heads_of(found: Index | list[Head]) -> list[Head]:
    return list(found.survey.heads) if isinstance(found, Index) else found


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
            f"reading {layout.name_in(folder)}: it is not there, so the id of this thread is not known; store the id "
            "under that key again, or delete the folder"
        )
    return stored.data.decode()
