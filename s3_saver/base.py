"""What both savers do; how it is run is theirs.

Every LangGraph method stands here once, in both colours, and below them the same as an operation: it reads its
arguments, serializes before it first waits, awaits operations of `operations/`, and decodes. `saver.py` and `aio.py`
say how an operation is run.
"""

from __future__ import annotations

import builtins
import random
import secrets
from abc import abstractmethod
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

from manifests.keys import clock_of
from s3_saver import records, saving
from s3_saver.bucket import Now, Operation, Work
from s3_saver.commits import Rows
from s3_saver.configs import accept_by, config_of, limit_of, query_of, ref_of, thread_id_of
from s3_saver.errors import ArchiveError, S3SaverError
from s3_saver.operations.delete_thread import delete_thread
from s3_saver.operations.delta_history import delta_history
from s3_saver.operations.get_tuple import get_tuple
from s3_saver.operations.list_page import PAGE_MAX, Listing
from s3_saver.operations.load import Loaded
from s3_saver.operations.setup import StoreReport, setup
from s3_saver.refs import Ref
from s3_saver.settings import GRACE, Settings
from s3_saver.shared import Shared

# What decoding one checkpoint costs beside its bytes, as bytes: several together are decoded off the event loop.
_DECODE_BYTES = 16_384


A = TypeVar("A")


class SaverBase(BaseCheckpointSaver[str]):
    """The part of `S3Saver` and `AsyncS3Saver` that does not depend on how operations are run."""

    def __init__(self, settings: Settings, serde: SerializerProtocol | None) -> None:
        super().__init__(serde=serde)
        self._shared = Shared(settings)
        self._clone = False

    def __repr__(self) -> str:
        settings = self._shared.settings
        return f"{type(self).__name__}({settings.bucket!r}, prefix={settings.prefix!r})"

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> SaverBase:
        """A clone that decodes the listed types too. It shares the client and all else; closing it closes nothing."""
        clone = super().with_allowlist(extra_allowlist)
        assert isinstance(clone, SaverBase)
        if clone is not self:
            clone._clone = True
        return clone

    def get_next_version(self, current: str | int | float | None, channel: None = None) -> str:
        """A version greater than `current`, as text that sorts; the fraction tells forks apart. No I/O.

        Accepts what other savers made: None, integers, floats, and text like `"7.0.5"`.
        """
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - tells versions apart, keeps no secret

    # How operations are run: all that `S3Saver` and `AsyncS3Saver` differ in

    @abstractmethod
    def _run(self, operation: Operation[A]) -> A: ...

    @abstractmethod
    async def _arun(self, operation: Operation[A]) -> A: ...

    @abstractmethod
    def _submit(self, ref: Ref, rows: Rows) -> None: ...

    @abstractmethod
    async def _asubmit(self, ref: Ref, rows: Rows) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """End the saver: wait for what it does, close what it made. An injected client stays open. Idempotent."""

    @abstractmethod
    async def aclose(self) -> None:
        """End the saver: wait for what it does, close what it made. An injected client stays open. Idempotent."""

    def _noted_run(self, method: str, subject: RunnableConfig | str | None, operation: Operation[A]) -> A:
        with noted(method, subject):
            return self._run(operation)

    async def _noted_arun(self, method: str, subject: RunnableConfig | str | None, operation: Operation[A]) -> A:
        with noted(method, subject):
            return await self._arun(operation)

    def setup(self, *, create_bucket: bool = False) -> StoreReport:
        """Check that the bucket answers and say what the store can do. Never needed; calling it again is fine.

        Raises `StoreAccessError` where there is no such bucket (unless `create_bucket`) or a right is lacking.
        """
        return self._noted_run("setup", None, self._setup(create_bucket))

    async def asetup(self, *, create_bucket: bool = False) -> StoreReport:
        """Check that the bucket answers and say what the store can do. Never needed; calling it again is fine."""
        return await self._noted_arun("setup", None, self._setup(create_bucket))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # LangGraph's methods, in its order

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names, or the newest of its namespace; None where there is none."""
        return self._noted_run("get_tuple", config, self._get_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first in each thread. Nothing is held between two of them."""
        left = limit_of(limit)
        listing = self._listing(config, filter, before)
        while left is None or left > 0:
            page = self._noted_run("list", config, self._page(listing, left))
            if page is None:
                return
            left = None if left is None else left - len(page)
            yield from page

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store the checkpoint; its parent is the one that `config` names. Returns the config that names it."""
        return self._noted_run("put", config, self._put(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store a task's writes beside the checkpoint that `config` names. They are durable on return."""
        ref, rows = self._rows(config, writes, task_id, task_path)
        if rows:
            with noted("put_writes", config):
                self._submit(ref, rows)

    def delete_thread(self, thread_id: str) -> None:
        """Remove all that the thread has, in all namespaces. A thread that is not there is left alone."""
        self._noted_run("delete_thread", thread_id, self._delete_thread(thread_id))

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names, or the newest of its namespace; None where there is none."""
        return await self._noted_arun("get_tuple", config, self._get_tuple(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, newest first in each thread. Nothing is held between two of them."""
        left = limit_of(limit)
        listing = self._listing(config, filter, before)
        while left is None or left > 0:
            page = await self._noted_arun("list", config, self._page(listing, left))
            if page is None:
                return
            left = None if left is None else left - len(page)
            for item in page:
                yield item

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store the checkpoint; its parent is the one that `config` names. Returns the config that names it."""
        return await self._noted_arun("put", config, self._put(config, checkpoint, metadata, new_versions))

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store a task's writes beside the checkpoint that `config` names. They are durable on return."""
        ref, rows = self._rows(config, writes, task_id, task_path)
        if rows:
            with noted("put_writes", config):
                await self._asubmit(ref, rows)

    async def adelete_thread(self, thread_id: str) -> None:
        """Remove all that the thread has, in all namespaces. A thread that is not there is left alone."""
        await self._noted_arun("delete_thread", thread_id, self._delete_thread(thread_id))

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Each channel's writes on the checkpoint's ancestors back to its nearest stored value, and that value."""
        return self._noted_run("get_delta_channel_history", config, self._delta_history(config, channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Each channel's writes on the checkpoint's ancestors back to its nearest stored value, and that value."""
        return await self._noted_arun("get_delta_channel_history", config, self._delta_history(config, channels))

    # The same as operations. Reading

    async def _get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        shared, serde = self._shared, self.serde
        ref = ref_of(config)
        began = await Now()
        loaded = await get_tuple(shared.layout, ref, ordered=shared.ordered)
        if loaded is None:
            return None
        shared.cache.remember(loaded.key, loaded.body, began)
        return (await self._decode(serde, [loaded]))[0]

    async def _decode(self, serde: SerializerProtocol, loaded: Sequence[Loaded]) -> builtins.list[CheckpointTuple]:
        for item in loaded:
            if item.writes:
                self._shared.cache.saw(clock_of(max(item.writes)))
        first = self.get_next_version(None)
        size = sum(item.size + _DECODE_BYTES for item in loaded)
        return await Work(lambda: [records.tuple_of(serde, item, first) for item in loaded], size)

    def _listing(
        self, config: RunnableConfig | None, filter: dict[str, Any] | None, before: RunnableConfig | None
    ) -> Listing:
        serde = self.serde
        query = query_of(config, filter=filter, before=before)
        accept = accept_by(filter, lambda thread_id, header: records.metadata_of(serde, thread_id, header))
        return Listing(self._shared.layout, replace(query, accept=accept), self._shared.ordered)

    async def _page(self, listing: Listing, left: int | None) -> builtins.list[CheckpointTuple] | None:
        """The next checkpoints of a listing, at most `left`; None at its end."""
        serde = self.serde
        loaded = await listing.page(PAGE_MAX if left is None else left)
        return None if loaded is None else await self._decode(serde, loaded[:left])

    async def _delta_history(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        if not channels:
            return {}
        serde, names = self.serde, list(dict.fromkeys(channels))
        ref = ref_of(config)
        ancestors = await delta_history(self._shared.layout, ref, names, ordered=self._shared.ordered)
        size = sum(ancestor.loaded.size + _DECODE_BYTES for ancestor in ancestors)
        return await Work(lambda: records.histories_of(serde, ancestors, names), size)

    # Writing

    async def _put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        shared, serde = self._shared, self.serde
        given = ref_of(config)
        parent = saving.remembered_parent(shared, given, given.checkpoint_id)
        draft = records.draft_of(
            serde,
            config,
            checkpoint,
            metadata,
            new_versions,
            parent=None if parent is None else parent.checkpoint,
            keep=shared.settings.metadata_filter,
        )
        # From here on we wait, and the caller's objects may change.
        await saving.save(shared, serde, draft, parent, checkpoint.get("channel_values") or {})
        return config_of(draft.ref)

    def _rows(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> tuple[Ref, Rows]:
        """The checkpoint that the writes belong to, which need not be stored yet, and the writes, serialized."""
        ref = ref_of(config)
        if ref.checkpoint_id is None:
            raise KeyError("checkpoint_id: the config of put_writes names the checkpoint that the writes belong to")
        return ref, records.rows_of(self.serde, writes, task_id, task_path)

    # The thread and the bucket

    async def _delete_thread(self, thread_id: str) -> None:
        thread_id = thread_id_of(thread_id)
        layout = self._shared.layout
        await delete_thread(layout, thread_id, grace_ms=round(GRACE.total_seconds() * 1000))
        self._shared.cache.forget_thread(layout.thread(thread_id))

    async def _setup(self, create_bucket: bool) -> StoreReport:
        settings = self._shared.settings
        return await setup(
            self._shared.layout, bucket=settings.bucket, create=create_bucket, unique=secrets.token_hex(8)
        )


@contextmanager
def noted(method: str, config: RunnableConfig | str | None) -> Iterator[None]:
    """Add to an error of the store what was being done, and to which thread."""
    try:
        yield
    except (S3SaverError, ArchiveError) as error:
        error.add_note(f"while {method} ran for {_subject(config)}")
        raise


def _subject(config: RunnableConfig | str | None) -> str:
    if not config:
        return "the archive"
    if not isinstance(config, dict):
        return f"thread {config!r}"
    names = ("thread_id", "checkpoint_ns", "checkpoint_id")
    return ", ".join(f"{name} {config['configurable'][name]!r}" for name in names if name in config["configurable"])
