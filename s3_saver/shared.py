"""What clones of a saver share. LangGraph clones a saver to give it another serializer."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from manifests.keys import Layout, batch_name, writes_in
from manifests.writes import encode_writes
from s3_saver.bucket import Work
from s3_saver.cache import Cache
from s3_saver.commits import Rows
from s3_saver.operations.put import put_writes
from s3_saver.refs import Ref
from s3_saver.settings import Settings


def uniques() -> Iterator[str]:
    """Names for objects: never one twice, so that nothing is overwritten."""
    while True:
        yield uuid.uuid4().hex


@dataclass
class Shared:
    """A saver's settings, the keys they lead to, and its cache. Made once, never copied."""

    settings: Settings
    layout: Layout = field(init=False)
    cache: Cache = field(default_factory=Cache)

    def __post_init__(self) -> None:
        self.layout = Layout.under(self.settings.prefix)

    @property
    def ordered(self) -> bool:
        return not self.settings.directory_bucket

    async def store_batch(self, ref: Ref, rows: Rows) -> None:
        """Store `rows` as one batch of the checkpoint's pending writes. One round."""
        assert ref.checkpoint_id is not None
        checkpoint_id = ref.checkpoint_id
        name = batch_name(self.cache.tick(time.time_ns() // 1000), secrets.token_hex(4))
        key = writes_in(self.layout.folder(ref.thread_id, ref.namespace, checkpoint_id), name)
        size = sum(len(row.value) for row in rows)
        body = await Work(lambda: encode_writes(rows, namespace=ref.namespace, checkpoint_id=checkpoint_id), size)
        await put_writes(key, body)
