"""What tests of the contract speak: savers on several stores under one face, and short ways to put and read.

A test takes `archive` or `saver` and runs once for each kind: the memory saver, `S3Saver` by its sync methods, and
`AsyncS3Saver` by its async ones, both on moto; marked with `on_a_real_server`, on SeaweedFS. Test modules import the
fixtures `archive_fixture`, `saver_fixture`, `kind_fixture` and `loop_fixture`.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.base.id import uuid6
from memory_saver import MemorySaver
from savers import Server, boto3_client, credentials, sync_saver

from manifests.keys import Layout
from s3_saver import AsyncS3Saver
from s3_saver.bucket import Now, Request, Work
from s3_saver.drivers.memory import MemoryBucket
from s3_saver.errors import StoreUnavailableError

A = TypeVar("A")
Config = dict[str, Any]

MEMORY, BOTO, AIO = "memory", "boto", "aio"
SEAWEED_BOTO, SEAWEED_AIO = "seaweed-boto", "seaweed-aio"

# For tests about what stores do differently: odd keys, order, StartAfter, deletion, conditional puts. A real server
# shows more of that than a simulated one.
on_a_real_server = pytest.mark.parametrize("kind", [MEMORY, SEAWEED_BOTO, SEAWEED_AIO])

WAIT_SECONDS = 30


# Configs and checkpoints


def config(thread_id: Any = "t", namespace: str = "", checkpoint_id: str | None = None) -> Config:
    """A config with a thread id and a namespace, and with a checkpoint id where one is given."""
    named = {} if checkpoint_id is None else {"checkpoint_id": checkpoint_id}
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace, **named}}


def whole_thread(thread_id: Any = "t", **others: Any) -> Config:
    """A config without a namespace, which means all of them to `list`."""
    return {"configurable": {"thread_id": thread_id, **others}}


class Put(NamedTuple):
    """What `put` returned, and the checkpoint that it was given."""

    config: Config
    checkpoint: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.checkpoint["id"])

    @property
    def versions(self) -> dict[str, Any]:
        return dict(self.checkpoint["channel_versions"])


def checkpoint(
    values: Mapping[str, Any] | None = None,
    versions: Mapping[str, Any] | None = None,
    *,
    id: str | None = None,
    **keys: Any,
) -> dict[str, Any]:
    """A checkpoint as LangGraph 1.2 makes it; `keys` add to its keys or replace them."""
    return {
        "v": 4,
        "id": id or str(uuid6(clock_seq=-2)),
        "ts": "2026-01-02T03:04:05.678901+00:00",
        "channel_values": dict(values or {}),
        "channel_versions": dict(versions or {}),
        "versions_seen": {"__input__": {}},
        "updated_channels": None,
        **keys,
    }


def put(
    saver: Any,
    thread_id: Any = "t",
    *,
    values: Mapping[str, Any] | None = None,
    namespace: str = "",
    parent: Put | None = None,
    metadata: dict[str, Any] | None = None,
    id: str | None = None,
    changed: Sequence[str] | None = None,
    under: Config | None = None,
    **keys: Any,
) -> Put:
    """Put a checkpoint of `values` after `parent`; `changed` channels (all of them, when None) get new versions.

    `under` replaces the config that `put` is given. Keys of the checkpoint that are not named stand in `keys`.
    """
    versions = parent.versions if parent else {}
    new = {
        name: saver.get_next_version(versions.get(name), None)
        for name in (changed if changed is not None else values or {})
    }
    stored = checkpoint(values, versions | new, id=id, **keys)
    given = under or config(thread_id, namespace, parent.id if parent else None)
    described = {"source": "loop", "step": 0, "parents": {}} if metadata is None else metadata
    return Put(saver.put(given, stored, described, new), stored)


def values_at(saver: Any, where: Config) -> dict[str, Any]:
    """The channel values of the checkpoint at `where`."""
    return dict(found(saver, where).checkpoint["channel_values"])


def found(saver: Any, where: Config) -> CheckpointTuple:
    """The checkpoint at `where`, which is there."""
    item = saver.get_tuple(where)
    assert item is not None
    return item  # type: ignore[no-any-return]


def writes_at(saver: Any, where: Config) -> list[tuple[str, str, Any]]:
    """The pending writes of the checkpoint at `where`."""
    return list(found(saver, where).pending_writes or [])


def id_of(item: CheckpointTuple) -> str:
    return str(item.config["configurable"]["checkpoint_id"])


def ids(items: Iterator[CheckpointTuple]) -> list[str]:
    return [id_of(item) for item in items]


def history(saver: Any, where: Config, *channels: str) -> dict[str, Any]:
    return dict(saver.get_delta_channel_history(config=where, channels=list(channels)))


# Buckets in memory that misbehave


@dataclass
class FailingBucket(MemoryBucket):
    """Fails the request number `fail_at`, counted from 0: before it takes effect, or after (its answer is lost)."""

    fail_at: int | None = None
    after: bool = False
    asked: int = 0

    def answer(self, request: Request[Any]) -> Any:
        if isinstance(request, Now | Work):
            return super().answer(request)
        number, self.asked = self.asked, self.asked + 1
        if number != self.fail_at:
            return super().answer(request)
        if self.after:
            super().answer(request)
        raise StoreUnavailableError(f"injected failure of request {number}")

    def arm(self, fail_at: int | None, *, after: bool = False) -> None:
        self.fail_at, self.after, self.asked = fail_at, after, 0


@dataclass
class GatedBucket(MemoryBucket):
    """Holds the first request that `holds` is true of, until `release` is called."""

    holds: Callable[[Request[Any]], bool] = lambda request: False
    reached: threading.Event = field(default_factory=threading.Event)
    _released: threading.Event = field(default_factory=threading.Event)

    def answer(self, request: Request[Any]) -> Any:
        if not isinstance(request, Now | Work) and not self.reached.is_set() and self.holds(request):
            self.reached.set()
            assert self._released.wait(WAIT_SECONDS)
        return super().answer(request)

    def release(self) -> None:
        self._released.set()


class Background:
    """A call in a thread of its own; its error rises in `result`."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._outcome: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome = self._call()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive(), "the call hangs"
        if self._error is not None:
            raise self._error
        return self._outcome


# An async saver under the names of the sync methods


class LoopThread:
    """An event loop in a thread, and an aiobotocore client in it for each server."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self._stack = AsyncExitStack()
        self._clients: dict[str, Any] = {}

    def run(self, coroutine: Coroutine[Any, Any, A]) -> A:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT_SECONDS)

    def client(self, server: Server) -> Any:
        if server.endpoint_url not in self._clients:
            self._clients[server.endpoint_url] = self.run(self._open(server))
        return self._clients[server.endpoint_url]

    async def _open(self, server: Server) -> Any:
        settings = AioConfig(
            s3={"addressing_style": "path"}, max_pool_connections=16, request_checksum_calculation="when_required"
        )
        return await self._stack.enter_async_context(
            get_session().create_client("s3", config=settings, **credentials(server))
        )

    def stop(self) -> None:
        self.run(self._stack.aclose())
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(WAIT_SECONDS)
        self.loop.close()


class Driven:
    """`AsyncS3Saver`, whose async methods run on one loop, under the names of their sync twins."""

    def __init__(self, saver: Any, loop: LoopThread) -> None:
        self.saver = saver
        self._loop = loop

    @property
    def serde(self) -> Any:
        return self.saver.serde

    @serde.setter
    def serde(self, serde: Any) -> None:
        self.saver.serde = serde

    def get_next_version(self, current: Any, channel: None) -> str:
        return str(self.saver.get_next_version(current, channel))

    def with_allowlist(self, extra: Any) -> Driven:
        clone = self.saver.with_allowlist(extra)
        return self if clone is self.saver else Driven(clone, self._loop)

    def get(self, config: Config) -> Any:
        return self._loop.run(self.saver.aget(config))

    def get_tuple(self, config: Config) -> Any:
        return self._loop.run(self.saver.aget_tuple(config))

    def list(self, config: Config | None, **conditions: Any) -> Iterator[Any]:
        return self._each(self.saver.alist(config, **conditions))

    def _each(self, items: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._loop.run(_next(items))
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run(items.aclose())

    def put(self, config: Config, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        return self._loop.run(self.saver.aput(config, checkpoint, metadata, new_versions))

    def put_writes(self, config: Config, writes: Any, task_id: str, task_path: str = "") -> None:
        self._loop.run(self.saver.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        self._loop.run(self.saver.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        self._loop.run(self.saver.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        self._loop.run(self.saver.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], **how: Any) -> None:
        self._loop.run(self.saver.aprune(thread_ids, **how))

    def plan_prune(self, thread_ids: Sequence[str], **how: Any) -> Any:
        return self._loop.run(self.saver.aplan_prune(thread_ids, **how))

    def threads(self, **which: Any) -> Iterator[Any]:
        return self._each(self.saver.athreads(**which))

    def get_delta_channel_history(self, *, config: Config, channels: Sequence[str]) -> Any:
        return self._loop.run(self.saver.aget_delta_channel_history(config=config, channels=channels))

    def close(self) -> None:
        self._loop.run(self.saver.aclose())


async def _next(items: Any) -> Any:
    return await anext(items)


# Archives


class Archive(ABC):
    """One archive with any number of savers on it, as processes have them, and its objects as they lie in the store."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.layout = Layout.under(prefix)
        self.savers: list[Any] = []

    def open(self, **settings: Any) -> Any:
        """Another saver on the archive, which has seen nothing of it."""
        saver = self._open(**settings)
        self.savers.append(saver)
        return saver

    def close(self) -> None:
        for saver in self.savers:
            saver.close()

    @abstractmethod
    def _open(self, **settings: Any) -> Any: ...

    @abstractmethod
    def keys(self) -> list[str]: ...

    @abstractmethod
    def read(self, key: str) -> bytes: ...

    @abstractmethod
    def write(self, key: str, body: bytes) -> None: ...

    @abstractmethod
    def remove(self, key: str) -> None: ...

    def keys_of(self, kind: str) -> list[str]:
        return [key for key in self.keys() if self.layout.kind(key) == kind]


class MemoryArchive(Archive):
    def __init__(self, prefix: str = "", bucket: MemoryBucket | None = None) -> None:
        super().__init__(prefix)
        self.bucket = bucket or MemoryBucket()

    def _open(self, **settings: Any) -> MemorySaver:
        return MemorySaver(self.bucket, prefix=self.prefix, **settings)

    def keys(self) -> list[str]:
        return sorted(self.bucket.objects)

    def read(self, key: str) -> bytes:
        return self.bucket.objects[key][0]

    def write(self, key: str, body: bytes) -> None:
        self.bucket.objects[key] = body, self.bucket.clock_ms

    def remove(self, key: str) -> None:
        del self.bucket.objects[key]


class S3Archive(Archive):
    """`loop` decides the saver: `AsyncS3Saver` on it, `S3Saver` without one."""

    def __init__(self, server: Server, prefix: str, loop: LoopThread | None) -> None:
        super().__init__(prefix)
        self.server = server
        self.loop = loop
        self.client = boto3_client(server)

    def _open(self, **settings: Any) -> Any:
        if self.loop is None:
            return sync_saver(self.server, self.prefix, **settings)
        client = self.loop.client(self.server)
        return Driven(AsyncS3Saver(self.server.bucket, prefix=self.prefix, client=client, **settings), self.loop)

    def keys(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=self.server.bucket, Prefix=f"{self.prefix}/"
        )
        return sorted(item["Key"] for page in pages for item in page.get("Contents", ()))

    def read(self, key: str) -> bytes:
        body: bytes = self.client.get_object(Bucket=self.server.bucket, Key=key)["Body"].read()
        return body

    def write(self, key: str, body: bytes) -> None:
        self.client.put_object(Bucket=self.server.bucket, Key=key, Body=body)

    def remove(self, key: str) -> None:
        self.client.delete_object(Bucket=self.server.bucket, Key=key)


# Fixtures


@pytest.fixture(name="kind", params=[MEMORY, BOTO, AIO])
def kind_fixture(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(name="loop_thread", scope="session")
def loop_fixture() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.stop()


@pytest.fixture(name="archive")
def archive_fixture(kind: str, request: pytest.FixtureRequest) -> Iterator[Archive]:
    """An empty archive of the kind."""
    archive: Archive
    if kind == MEMORY:
        archive = MemoryArchive()
    else:
        server = request.getfixturevalue("seaweed" if kind in (SEAWEED_BOTO, SEAWEED_AIO) else "moto_server")
        loop = request.getfixturevalue("loop_thread") if kind in (AIO, SEAWEED_AIO) else None
        archive = S3Archive(server, request.getfixturevalue("prefix"), loop)
    yield archive
    archive.close()


@pytest.fixture(name="saver")
def saver_fixture(archive: Archive) -> Any:
    """A saver on an empty archive."""
    return archive.open()
