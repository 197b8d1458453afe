"""What delta channels are rebuilt from: the writes of a checkpoint's ancestors, back to the nearest stored value.

Parent pointers decide, never the order of ids. But a parent's id is nearly always smaller than its child's, so the
ancestors are found by listing the namespace from the target on, and headers are fetched as the listing yields them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from manifests.checkpoints import Header
from manifests.keys import Layout, checkpoint_in, copying_in, past
from s3_saver.bucket import PAGE_KEYS_MAX, Body, Get, List, Listed, both, every
from s3_saver.errors import StoreUnavailableError
from s3_saver.operations.listing import all_keys, folder_of, heads_of
from s3_saver.operations.load import Loaded, assemble, checked_header, fetch, read_head
from s3_saver.refs import Ref

# Enough for a hundred ancestors, which is LangGraph's default distance between two snapshots.
_FIRST_PAGE = 256
_ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class Ancestor:
    """One ancestor's bytes, and the channels whose nearest stored value it holds."""

    loaded: Loaded
    seeds: frozenset[str]


@dataclass
class _Walk:
    """What is known so far: listed batches, fetched headers, and the path from the target's parent on."""

    layout: Layout
    ref: Ref
    ordered: bool
    open: set[str]
    target: str | None = None
    next_id: str | None = None
    path: list[tuple[str, frozenset[str]]] = field(default_factory=list)
    keys: list[Listed] = field(default_factory=list)
    more: bool = True
    pages: int = 0
    batches: dict[str, list[str]] = field(default_factory=dict)
    fetched: dict[str, tuple[Header, Body] | None] = field(default_factory=dict)
    seen: set[str] = field(default_factory=set)

    @property
    def namespace(self) -> str:
        return self.layout.namespace(self.ref.thread_id, self.ref.namespace)

    def folder(self, checkpoint_id: str) -> str:
        return self.layout.folder(self.ref.thread_id, self.ref.namespace, checkpoint_id)

    @property
    def unread(self) -> list[str]:
        """Listed folders whose headers were not asked for yet."""
        return [folder for folder in self.batches if folder not in self.fetched]

    @property
    def done(self) -> bool:
        return self.target is not None and (not self.open or self.next_id is None or self.next_id in self.seen)

    @property
    def broken(self) -> bool:
        """Whether the path ends at an ancestor that is not there: it was pruned, or its thread is being deleted."""
        return self.target is not None and not self.done

    def listed(self, keys: Sequence[Listed], more: bool) -> None:
        self.keys.extend(keys)
        self.more = more
        self.pages += 1
        heads = heads_of(self.layout, self.keys)
        # The last folder's batches may go on in the next page.
        cut = folder_of(self.keys[-1].key) if more and self.keys else None
        self.batches |= {head.folder: [b.key for b in head.writes] for head in heads if head.folder != cut}

    def advance(self) -> None:
        """Follow parent pointers as far as headers are known."""
        if self.target is None:
            there = next((folder for folder in self.batches if self.fetched.get(folder)), None)
            if there is None:
                return
            found = self.fetched[there]
            assert found is not None
            self.aim(found[0])
        while not self.done and self.next_id is not None:
            found = self.fetched.get(self.folder(self.next_id))
            if found is None:
                return
            self.seen.add(self.next_id)
            seeds = frozenset(self.open & found[0].channels.keys())
            self.path.append((self.folder(self.next_id), seeds))
            self.open -= seeds
            self.next_id = found[0].parent_id

    def aim(self, header: Header) -> None:
        self.target, self.next_id = self.folder(header.checkpoint_id), header.parent_id
        # The target's own writes and values never count, not even where it is its own ancestor.
        self.seen.add(header.checkpoint_id)


async def delta_history(layout: Layout, ref: Ref, channels: Sequence[str], *, ordered: bool = True) -> list[Ancestor]:
    """The ancestors that matter to `channels`, nearest first; none where the target is not there or being deleted.

    Rounds: the pages of the namespace's listing that were needed, and at most three. One more for each ancestor with
    an id greater than the target's, one where headers are long, two where an ancestor that matters is not there.
    """
    for _ in range(_ATTEMPTS_MAX):
        walk = _Walk(layout, ref, ordered, set(channels))
        if not await _begin(walk):
            return []
        await _find_path(walk)
        ancestors = await every(_ancestor(walk, folder, seeds) for folder, seeds in walk.path)
        found = [ancestor for ancestor in ancestors if ancestor is not None]
        vanished = len(found) < len(ancestors)
        if (vanished or walk.broken) and await _deleted(layout, ref, walk):
            return []
        # Where an ancestor vanished or appeared since we looked, the path that there is now is another one: look again.
        if not vanished and not (walk.broken and await _appeared(walk)):
            return found
    raise StoreUnavailableError(
        f"reading the ancestors of a checkpoint of thread {ref.thread_id!r}: they were removed while they were read, "
        f"{_ATTEMPTS_MAX} times; try again when the prune or deletion has ended"
    )


async def _appeared(walk: _Walk) -> bool:
    """Whether the ancestor at which the path broke off is there now: a copy into the thread ended meanwhile."""
    return walk.next_id is not None and await read_head(checkpoint_in(walk.folder(walk.next_id))) is not None


async def _deleted(layout: Layout, ref: Ref, walk: _Walk) -> bool:
    """Whether ancestors lack because the thread is being deleted. Raises where it is still being copied into."""
    folder = layout.thread(ref.thread_id)
    tombstone, copying = await both(Get(layout.deleted_in(folder)), Get(copying_in(folder)))
    if copying is not None and tombstone is None:
        raise StoreUnavailableError(
            f"reading the ancestors of a checkpoint of thread {ref.thread_id!r}: {walk.next_id!r} is not there, since "
            "a copy into this thread has not ended; wait for it, or call copy_thread again to finish it"
        )
    return tombstone is not None


async def _find_path(walk: _Walk) -> None:
    """Complete the walk's path."""
    walk.advance()
    while not walk.done:
        unread = walk.unread
        if walk.next_id is not None and walk.target is not None and walk.folder(walk.next_id) <= walk.target:
            if not await _stray(walk, walk.next_id):
                return
        elif unread:
            # From the second page on, the next page is listed beside the headers of the one before.
            ahead = _next_page(walk) if walk.more and walk.pages > 1 else _nothing()
            await both(_headers(walk, unread), ahead)
        elif walk.more and _reachable(walk):
            await _next_page(walk)
        else:
            return
        walk.advance()


async def _begin(walk: _Walk) -> bool:
    """List the first page. Where the target is given, read its header too; False where it is not there."""
    if walk.ref.checkpoint_id is None:
        await _next_page(walk)
        return True
    folder = walk.folder(walk.ref.checkpoint_id)
    body, _ = await both(read_head(checkpoint_in(folder)), _next_page(walk, past(folder)))
    if body is None:
        return False
    walk.aim(checked_header(walk.layout, body.data, key=checkpoint_in(folder)))
    return True


async def _next_page(walk: _Walk, after: str | None = None) -> None:
    if not walk.ordered:
        keys = await all_keys(walk.namespace)
        walk.listed([listed for listed in keys if after is None or listed.key > after], more=False)
        return
    after = walk.keys[-1].key if walk.keys else after
    page = await List(walk.namespace, after=after, limit=PAGE_KEYS_MAX if walk.pages else _FIRST_PAGE)
    walk.listed(page.keys, more=page.token is not None)


async def _headers(walk: _Walk, folders: Sequence[str]) -> None:
    bodies = await every(read_head(checkpoint_in(folder)) for folder in folders)
    for folder, body in zip(folders, bodies, strict=True):
        key = checkpoint_in(folder)
        walk.fetched[folder] = None if body is None else (checked_header(walk.layout, body.data, key=key), body)


async def _stray(walk: _Walk, checkpoint_id: str) -> bool:
    """Fetch an ancestor that sorts before the target, where nothing was listed. False where it is not there."""
    folder = walk.folder(checkpoint_id)
    body, keys = await both(read_head(checkpoint_in(folder)), all_keys(folder))
    # Listed without its object it was removed just then, and its writes may be as well.
    if body is None or all(listed.key != checkpoint_in(folder) for listed in keys):
        return False
    walk.fetched[folder] = checked_header(walk.layout, body.data, key=checkpoint_in(folder)), body
    walk.batches[folder] = [listed.key for listed in keys if walk.layout.kind(listed.key) == "writes"]
    return True


def _reachable(walk: _Walk) -> bool:
    """Whether the next ancestor can still turn up: the listing is sorted, so it may have passed its place."""
    return walk.next_id is None or not walk.keys or walk.folder(walk.next_id) >= folder_of(walk.keys[-1].key)


async def _nothing() -> None:
    return None


async def _ancestor(walk: _Walk, folder: str, seeds: frozenset[str]) -> Ancestor | None:
    found = walk.fetched[folder]
    assert found is not None
    header, body = found
    key = checkpoint_in(folder)
    if not seeds:
        # Only its writes are asked for, so neither payload nor large values need to be read.
        batches = await fetch(walk.batches[folder])
        present = {name: batch.data for name, batch in batches.items() if batch}
        ref = Ref(walk.ref.thread_id, header.namespace, header.checkpoint_id)
        return Ancestor(Loaded(ref, key, header, b"", {}, present), seeds) if len(present) == len(batches) else None
    whole = body if body.whole else await Get(key)
    if whole is None:
        return None
    loaded = await assemble(walk.layout, walk.ref.thread_id, key, whole, lambda: fetch(walk.batches[folder]))
    return None if loaded is None else Ancestor(loaded, seeds)
