"""Which threads there are, from listings alone: no state is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from manifests.keys import Layout, decode
from s3_saver.bucket import List, Page, every
from s3_saver.operations.list_page import thread_name
from s3_saver.operations.load import read_header


@dataclass(frozen=True, slots=True)
class ThreadSummary:
    """What a listing tells of a thread.

    namespaces: all that hold checkpoints, sorted; `""` is the root graph.
    checkpoints: how many there are in all namespaces.
    newest_id: the greatest checkpoint id over all namespaces.
    newest_stored: when the store took that checkpoint, by its own clock. A copy has the copy's time.
    bytes: what all of the thread's objects take, values, writes and manifest included.
    """

    thread_id: str
    namespaces: tuple[str, ...]
    checkpoints: int
    newest_id: str
    newest_stored: datetime
    bytes: int


@dataclass
class _Count:
    """Sums over a thread's listing, page by page: memory does not grow with the thread."""

    layout: Layout
    folder: str
    checkpoints: int = 0
    bytes: int = 0
    newest: tuple[str, int] | None = None
    # Each namespace's part of the key, with a checkpoint of it, from which a hashed name can be read.
    namespaces: dict[str, str] = field(default_factory=dict)

    def add(self, page: Page) -> None:
        for listed in page.keys:
            self.bytes += listed.size
            if self.layout.kind(listed.key) != "checkpoint":
                continue
            parsed = self.layout.parse(listed.key)
            self.checkpoints += 1
            self.namespaces.setdefault(parsed.namespace, listed.key)
            if self.newest is None or parsed.checkpoint_id > self.newest[0]:
                self.newest = parsed.checkpoint_id, listed.modified_ms


async def summary(layout: Layout, thread_folder: str) -> ThreadSummary | None:
    """The thread's summary; None where it has no checkpoint. Rounds: the pages of its listing, one for long names."""
    count = _Count(layout, thread_folder)
    page = await List(thread_folder)
    count.add(page)
    while page.token is not None:
        page = await List(thread_folder, token=page.token)
        count.add(page)
    if count.newest is None:
        return None
    thread_id = await thread_name(layout, thread_folder)
    names = await every(_namespace(layout, part, key) for part, key in count.namespaces.items())
    if thread_id is None:
        return None
    newest_id, stored_ms = count.newest
    return ThreadSummary(
        thread_id=thread_id,
        namespaces=tuple(sorted(name for name in names if name is not None)),
        checkpoints=count.checkpoints,
        newest_id=newest_id,
        newest_stored=datetime.fromtimestamp(stored_ms / 1000, UTC),
        bytes=count.bytes,
    )


async def _namespace(layout: Layout, part: str, key: str) -> str | None:
    """A namespace's name. Where only its hash is in the key, a checkpoint's header has it."""
    name = decode(part)
    if name is not None:
        return name
    header = await read_header(layout, key)
    return None if header is None else header.namespace
