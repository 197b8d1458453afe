"""LangGraph's methods, written as operations: what both savers do, whoever runs it.

Each coroutine reads its arguments, serializes before it first waits, awaits operations of `operations/`, and decodes.
"""

from __future__ import annotations

import logging
import random
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

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
from s3_saver import reading, records, saving
from s3_saver.bucket import Now, Work, every
from s3_saver.commits import Rows
from s3_saver.configs import accept_by, config_of, query_of, ref_of, rule_of, text_of, texts_of, thread_id_of
from s3_saver.errors import ArchiveError, S3SaverError, ThreadBusyError
from s3_saver.operations.copy_thread import copy_thread
from s3_saver.operations.delete_runs import delete_runs_in, threads_of_runs
from s3_saver.operations.delete_thread import delete_thread
from s3_saver.operations.deleting import refuse_leftovers
from s3_saver.operations.delta_history import delta_history
from s3_saver.operations.excluding import Refused
from s3_saver.operations.get_tuple import get_tuple
from s3_saver.operations.list_page import PAGE_MAX, Listing
from s3_saver.operations.listing import threads_page
from s3_saver.operations.load import Loaded
from s3_saver.operations.prune import PrunePlan, Rule, ThreadPlan, plan, prune
from s3_saver.operations.setup import StoreReport, setup
from s3_saver.operations.survey import Describe, Index, tend
from s3_saver.operations.threads import ThreadSummary, summary
from s3_saver.refs import Ref
from s3_saver.settings import GRACE, Settings
from s3_saver.shared import Shared, uniques

logger = logging.getLogger(__name__)

# What decoding one checkpoint costs beside its bytes, as bytes: several together are decoded off the event loop.
_DECODE_BYTES = 16_384
_GRACE_MS = round(GRACE.total_seconds() * 1000)
_THREADS_AT_ONCE = 8


class Flows(BaseCheckpointSaver[str]):
    """What `S3Saver` and `AsyncS3Saver` do."""

    def __init__(self, settings: Settings, serde: SerializerProtocol | None) -> None:
        super().__init__(serde=serde)
        self._shared = Shared(settings)
        self._clone = False

    def __repr__(self) -> str:
        settings = self._shared.settings
        return f"{type(self).__name__}({settings.bucket!r}, prefix={settings.prefix!r})"

    def with_allowlist(self, extra_allowlist: Collection[tuple[str, ...]]) -> Flows:
        """A clone that decodes the listed types too. It shares the client and all else; closing it closes nothing."""
        clone = super().with_allowlist(extra_allowlist)
        assert isinstance(clone, Flows)
        if clone is not self:
            clone._clone = True
        return clone

    def get_next_version(self, current: str | int | float | None, channel: None = None) -> str:
        """A version greater than `current`, as text that sorts; the fraction tells forks apart. No I/O.

        Accepts what other savers made: None, integers, floats, and text like `"7.0.5"`.
        """
        number = 0 if current is None else int(str(current).split(".")[0])
        return f"{number + 1:032}.{random.random():016}"  # noqa: S311 - tells versions apart, keeps no secret

    # Reading

    async def _get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        shared, serde = self._shared, self.serde
        ref = ref_of(config)
        began = await Now()
        loaded = await get_tuple(shared.layout, ref, ordered=shared.ordered)
        if loaded is None:
            return None
        shared.cache.remember(loaded.key, loaded.body, began)
        return (await self._decode(serde, [loaded]))[0]

    async def _decode(self, serde: SerializerProtocol, loaded: Sequence[Loaded]) -> list[CheckpointTuple]:
        for item in loaded:
            if item.writes:
                self._shared.cache.saw(clock_of(max(item.writes)))
        first, cache = self.get_next_version(None), self._shared.cache
        size = sum(item.size + _DECODE_BYTES for item in loaded)
        return await Work(lambda: [reading.tuple_of(serde, item, first, cache) for item in loaded], size)

    def _listing(
        self, config: RunnableConfig | None, filter: dict[str, Any] | None, before: RunnableConfig | None
    ) -> Listing:
        serde = self.serde
        query = query_of(config, filter=filter, before=before)
        accept = accept_by(filter, lambda *about: reading.metadata_of(serde, *about))
        describe = reading.describer(serde)
        return Listing(self._shared.layout, replace(query, accept=accept), describe, self._shared.ordered)

    async def _page(self, listing: Listing, left: int | None) -> list[CheckpointTuple] | None:
        """The next checkpoints of a listing, at most `left`; None at its end."""
        serde = self.serde
        loaded = await listing.page(PAGE_MAX if left is None else left)
        while listing.indexes:
            await self._tend(listing.indexes.pop())
        return None if loaded is None else await self._decode(serde, loaded[:left])

    async def _delta_history(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        if not channels:
            return {}
        serde, names, cache = self.serde, list(dict.fromkeys(channels)), self._shared.cache
        ref = ref_of(config)
        ancestors = await delta_history(self._shared.layout, ref, names, ordered=self._shared.ordered)
        size = sum(ancestor.loaded.size + _DECODE_BYTES for ancestor in ancestors)
        return await Work(lambda: reading.histories_of(serde, ancestors, names, cache), size)

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
        await delete_thread(layout, thread_id, grace_ms=_GRACE_MS)
        self._shared.cache.forget_thread(layout.thread(thread_id))

    async def _copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        source, target = thread_id_of(source_thread_id), thread_id_of(target_thread_id)
        await copy_thread(self._shared.layout, source, target, self._describer, grace_ms=_GRACE_MS, uniques=uniques())

    async def _delete_for_runs(self, run_ids: Sequence[str]) -> None:
        wanted = frozenset(text_of("each of run_ids", run_id) for run_id in texts_of("run_ids", run_ids))
        layout, serde = self._shared.layout, self.serde
        refused: dict[str, Refused] = {}
        failed: dict[str, str] = {}
        for folder in await threads_of_runs(layout, wanted) if wanted else []:
            try:
                failed |= await delete_runs_in(
                    layout,
                    folder,
                    wanted,
                    reading.describer(serde),
                    reading.run_of(serde),
                    grace_ms=_GRACE_MS,
                    uniques=uniques(),
                )
            except Refused as refusal:
                # The other threads are done all the same.
                refused[layout.thread_part(folder)] = refusal
            self._shared.cache.forget_thread(folder)
        refuse_leftovers(failed, "deleting runs")
        for thread, why in refused.items():
            raise ThreadBusyError(
                f"deleting runs: {len(refused)} threads were left as they are, the first is {thread!r}: {why}; the "
                "other threads are done; delete later runs as well, or the thread"
            )

    async def _prune(
        self, thread_ids: Sequence[str], strategy: str, keep: int | None, older_than: timedelta | None, exclusive: bool
    ) -> None:
        threads = list(dict.fromkeys(thread_id_of(one) for one in texts_of("thread_ids", thread_ids)))
        rule = rule_of(strategy, keep, older_than)
        if rule is None:
            for thread_id in threads:
                await self._delete_thread(thread_id)
            return
        outcomes = [
            outcome
            for start in range(0, len(threads), _THREADS_AT_ONCE)
            for outcome in await every(
                self._prune_one(thread_id, rule, exclusive) for thread_id in threads[start : start + _THREADS_AT_ONCE]
            )
        ]
        failed = {key: why for outcome in outcomes if isinstance(outcome, dict) for key, why in outcome.items()}
        refuse_leftovers(failed, "pruning")
        for outcome in outcomes:
            if isinstance(outcome, ThreadBusyError):
                raise outcome

    async def _prune_one(self, thread_id: str, rule: Rule, exclusive: bool) -> dict[str, str] | ThreadBusyError:
        """Prune a thread. The keys that stayed, or why it was left as it is: the others are pruned all the same."""
        layout = self._shared.layout
        try:
            removed = await prune(
                layout,
                thread_id,
                rule,
                self._describer,
                grace_ms=_GRACE_MS,
                exclusive=exclusive,
                uniques=uniques(),
            )
        except Refused as why:
            return _busy(thread_id, why)
        self._shared.cache.forget_thread(layout.thread(thread_id))
        await self._tend(removed.index)
        return removed.failed

    async def _plan_prune(
        self, thread_ids: Sequence[str], strategy: str, keep: int | None, older_than: timedelta | None
    ) -> PrunePlan:
        threads = list(dict.fromkeys(thread_id_of(one) for one in texts_of("thread_ids", thread_ids)))
        rule = rule_of(strategy, keep, older_than)
        return PrunePlan(tuple([await self._plan_one(thread_id, rule or Rule(newest=0)) for thread_id in threads]))

    async def _plan_one(self, thread_id: str, rule: Rule) -> ThreadPlan:
        try:
            return await plan(self._shared.layout, thread_id, rule, self._describer)
        except Refused as why:
            raise _busy(thread_id, why) from None

    async def _thread_page(self, after: str | None, token: str | None) -> tuple[list[ThreadSummary], str | None]:
        start = None if after is None else thread_id_of(after)
        page = await threads_page(self._shared.layout, token, after=start)
        found = await every(summary(self._shared.layout, folder) for folder in page.folders)
        return [item for item in found if item is not None], page.token

    @property
    def _describer(self) -> Describe:
        return reading.describer(self.serde)

    async def _tend(self, found: Index) -> None:
        """Index what a reader had to read from headers. Reading is what was asked, so a failure is only noted."""
        try:
            await tend(found, next(uniques()))
        except (S3SaverError, ArchiveError) as error:
            logger.info("the manifest below %s was not extended: %s", found.survey.folder, error)

    async def _setup(self, create_bucket: bool) -> StoreReport:
        settings = self._shared.settings
        return await setup(
            self._shared.layout, bucket=settings.bucket, create=create_bucket, unique=secrets.token_hex(8)
        )


def _busy(thread_id: str, why: Refused) -> ThreadBusyError:
    return ThreadBusyError(f"pruning thread {thread_id!r}: {why}")
