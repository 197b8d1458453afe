"""The savers' public face: every LangGraph method once, in both colours.

What a method does stands in `flows.py`, as an operation; `saver.py` and `aio.py` say how an operation is run.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from s3_saver.bucket import Operation
from s3_saver.commits import Rows
from s3_saver.configs import limit_of
from s3_saver.errors import ArchiveError, S3SaverError
from s3_saver.flows import Flows
from s3_saver.operations.prune import PrunePlan
from s3_saver.operations.setup import StoreReport
from s3_saver.operations.threads import ThreadSummary
from s3_saver.refs import Ref

A = TypeVar("A")


class SaverBase(Flows):
    """The methods of `S3Saver` and `AsyncS3Saver`."""

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

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove every checkpoint whose metadata names one of the runs, with its writes, in all threads.

        Raises `ThreadBusyError` naming threads that were left alone, since a checkpoint that would stay newest needs
        one of the run's for a delta channel; the other threads are done.
        """
        self._noted_run("delete_for_runs", None, self._delete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the whole thread: all namespaces, checkpoints with their parents, writes, values. Repeat to resume.

        A source that is not there, and a copy to itself, change nothing. Raises ValueError where the target has
        checkpoints that the source has not, or has with other content, and `ThreadBusyError` where the target is being
        pruned or the source is itself being copied to.
        """
        self._noted_run("copy_thread", source_thread_id, self._copy_thread(source_thread_id, target_thread_id))

    def prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep: int | None = None,
        older_than: timedelta | None = None,
        exclusive: bool = False,
    ) -> None:
        """Remove old checkpoints, but none that a remaining newest one needs to rebuild its delta channels.

        Args:
            thread_ids: The threads. Unknown ones are fine.
            strategy: `"keep_latest"` keeps the newest checkpoint of each namespace; `"keep_last"` the newest `keep`;
                `"delete"` (or `"delete_all"`) removes the threads.
            keep: How many to keep with `"keep_last"`. Default: 1.
            older_than: With `"keep_last"`, remove only what the store took longer ago than this. Default: any age.
            exclusive: The caller warrants that no run is active on the threads: large values are freed at once, not
                after an hour by a later prune.

        Raises:
            TypeError, ValueError: An argument is wrong; nothing was touched.
            DeletionError: Some keys could not be deleted (a lock, a right); `.failed` names them, the rest is done.
            ThreadBusyError: A copy into a thread has not ended; that thread was left alone, the rest is done.
        """
        self._noted_run("prune", None, self._prune(thread_ids, strategy, keep, older_than, exclusive))

    def plan_prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep: int | None = None,
        older_than: timedelta | None = None,
    ) -> PrunePlan:
        """What `prune` would remove and keep, and why. Prints as a table. Nothing is changed."""
        return self._noted_run("plan_prune", None, self._plan_prune(thread_ids, strategy, keep, older_than))

    def threads(self, *, after: str | None = None, limit: int | None = None) -> Iterator[ThreadSummary]:
        """Yield a summary of each thread, from listings alone: no state is read.

        `after` goes on behind that thread id, in the order in which the store lists folders.
        """
        token, left = None, limit
        while left is None or left > 0:
            page, token = self._noted_run("threads", None, self._thread_page(after, token))
            page = page[:left]
            left = None if left is None else left - len(page)
            yield from page
            if token is None:
                return

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove every checkpoint whose metadata names one of the runs, with its writes, in all threads."""
        await self._noted_arun("delete_for_runs", None, self._delete_for_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the whole thread: all namespaces, checkpoints with their parents, writes, values. Repeat to resume."""
        await self._noted_arun("copy_thread", source_thread_id, self._copy_thread(source_thread_id, target_thread_id))

    async def aprune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep: int | None = None,
        older_than: timedelta | None = None,
        exclusive: bool = False,
    ) -> None:
        """Remove old checkpoints, but none that a remaining newest one needs to rebuild its delta channels."""
        await self._noted_arun("prune", None, self._prune(thread_ids, strategy, keep, older_than, exclusive))

    async def aplan_prune(
        self,
        thread_ids: Sequence[str],
        *,
        strategy: str = "keep_latest",
        keep: int | None = None,
        older_than: timedelta | None = None,
    ) -> PrunePlan:
        """What `prune` would remove and keep, and why. Prints as a table. Nothing is changed."""
        return await self._noted_arun("plan_prune", None, self._plan_prune(thread_ids, strategy, keep, older_than))

    async def athreads(self, *, after: str | None = None, limit: int | None = None) -> AsyncIterator[ThreadSummary]:
        """Yield a summary of each thread, from listings alone: no state is read."""
        token, left = None, limit
        while left is None or left > 0:
            page, token = await self._noted_arun("threads", None, self._thread_page(after, token))
            page = page[:left]
            left = None if left is None else left - len(page)
            for item in page:
                yield item
            if token is None:
                return

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
