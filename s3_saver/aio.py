"""`AsyncS3Saver`: for graphs that run in an event loop. Its sync methods work from any other thread."""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from threading import Lock, Thread
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from langgraph.checkpoint.serde.base import SerializerProtocol

from s3_saver import settings as settings_
from s3_saver.base import SaverBase
from s3_saver.bucket import Operation
from s3_saver.clients import AsyncClient, Connection
from s3_saver.commits import LoopCommits, Rows
from s3_saver.drivers.aio import AioDriver
from s3_saver.errors import SaverClosedError
from s3_saver.refs import Ref
from s3_saver.settings import DEFAULT, INLINE_LIMIT_BYTES, MAX_CONCURRENCY, MetadataFilter
from s3_saver.shared import Shared

A = TypeVar("A")


class AsyncS3Saver(SaverBase):
    """A LangGraph checkpointer that archives every checkpoint as one immutable S3 object, without blocking the loop.

    It can be made anywhere, connects at the first request, and works under one event loop after another: each gets
    its own client, which is closed with the loop at the latest. Sync methods run on a loop of the saver's own, from
    any thread; with an injected client they run on the client's loop, from any thread but that loop's.

    Args:
        bucket: The bucket's name, without `s3://` or a slash. It must exist, see `asetup`.
        prefix: What all keys start with, without a slash at its ends. Default: nothing.
        session: An `aioboto3.Session` or an aiobotocore session to make clients from. Default: one from the usual
            chain of credentials and settings.
        client: An open aiobotocore S3 client, which the saver does not close; instead of `session`. The saver then
            works in the client's event loop only.
        serde, put_extra_args, metadata_filter, inline_limit, max_concurrency: As for `S3Saver`.

    Raises:
        ValueError, TypeError: An argument is wrong; the message says which and what is allowed.
    """

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        session: Any = None,
        client: Any = None,
        serde: SerializerProtocol | None = None,
        put_extra_args: Mapping[str, Any] | None = None,
        metadata_filter: MetadataFilter | None = DEFAULT,
        inline_limit: int = INLINE_LIMIT_BYTES,
        max_concurrency: int = MAX_CONCURRENCY,
        _connection: Connection = Connection(),  # noqa: B008 - immutable
    ) -> None:
        if session is not None and client is not None:
            raise ValueError("session and client exclude each other; give one of them, or neither")
        settings = settings_.checked(
            bucket,
            prefix=prefix,
            put_extra_args=put_extra_args,
            metadata_filter=metadata_filter,
            inline_limit=inline_limit,
            max_concurrency=max_concurrency,
        )
        super().__init__(settings, serde)
        self._driver = AioDriver(
            lambda: AsyncClient(session, _connection, max_concurrency),
            client=client,
            bucket=bucket,
            put_extra_args=settings.put_extra_args,
            max_concurrency=max_concurrency,
        )
        self._loops = Loops(self._shared, self._driver, foreign=client is not None)

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, conn_string: str, **keywords: Any) -> AsyncIterator[Self]:
        """A saver for `s3://bucket/prefix?region_name=…&endpoint_url=…&profile_name=…`, closed at the block's end.

        `keywords` are those of the class. A string holds no credentials: they come from the usual chain.
        """
        bucket, prefix, connection = settings_.from_conn_string(conn_string)
        async with cls(bucket, prefix=prefix, _connection=Connection(**connection), **keywords) as saver:
            yield saver

    def _run(self, operation: Operation[A]) -> A:
        try:
            # The first step serializes: here and now, before the caller's objects can change.
            first = operation.send(None)  # type: ignore[arg-type]
        except StopIteration as stop:
            result: A = stop.value
            return result
        return self._loops.run(lambda: self._driver.arun(operation, first))

    async def _arun(self, operation: Operation[A]) -> A:
        self._loops.entered()
        return await self._driver.arun(operation)

    def _submit(self, ref: Ref, rows: Rows) -> None:
        self._loops.run(lambda: self._loops.commits().submit(ref, rows))

    async def _asubmit(self, ref: Ref, rows: Rows) -> None:
        self._loops.entered()
        await self._loops.commits().submit(ref, rows)

    def close(self) -> None:
        if not self._clone:
            self._loops.close()

    async def aclose(self) -> None:
        if not self._clone:
            await self._loops.drained()
            await self._driver.aclose()
            await asyncio.to_thread(self._loops.close)


class Loops:
    """The event loops that a saver works in, and the one of its own that its sync methods share.

    `foreign`: the client is the caller's and lives in the caller's loop, so everything runs there.
    """

    def __init__(self, shared: Shared, driver: AioDriver, *, foreign: bool) -> None:
        self._shared = shared
        self._driver = driver
        self._foreign = foreign
        self._lock = Lock()
        self._commits: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopCommits] = WeakKeyDictionary()
        self._home: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._closed = False
        if foreign:
            self.entered()

    def entered(self) -> None:
        """Note the running loop as the injected client's."""
        if self._foreign and self._home is None:
            try:
                self._home = asyncio.get_running_loop()
            except RuntimeError:
                return  # made outside of a loop: the first async call tells

    def commits(self) -> LoopCommits:
        """The running loop's group commit."""
        with self._lock:
            loop = asyncio.get_running_loop()
            if loop not in self._commits:
                driver, shared = self._driver, self._shared
                self._commits[loop] = LoopCommits(lambda ref, rows: driver.arun(shared.store_batch(ref, rows)))
            return self._commits[loop]

    async def drained(self) -> None:
        await self.commits().drained()

    def run(self, call: Callable[[], Coroutine[Any, Any, A]]) -> A:
        """Run a coroutine on the sync methods' loop and wait for it, in a thread that is not that loop's."""
        # Under the lock: what is submitted before `close` is waited for by it.
        with self._lock:
            loop = self._foreign_loop() if self._foreign else self._own_loop()
            future = asyncio.run_coroutine_threadsafe(_started(call), loop)
        return future.result()

    def _foreign_loop(self) -> asyncio.AbstractEventLoop:
        if self._home is None or not self._home.is_running():
            raise RuntimeError(
                "a sync method of AsyncS3Saver with an injected client runs on the client's event loop, and that is "
                "not running; use S3Saver, or pass session= instead of client="
            )
        try:
            blocked = asyncio.get_running_loop() is self._home
        except RuntimeError:
            blocked = False
        if blocked:
            raise asyncio.InvalidStateError(
                "a sync method of AsyncS3Saver was called on the event loop that it would wait for; await its async "
                "twin, or call it from another thread"
            )
        return self._home

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise SaverClosedError("this saver was closed; make a new one")
        if self._home is None:
            self._home = asyncio.new_event_loop()
            self._thread = Thread(target=_serve, args=(self._home,), name="s3-saver-loop", daemon=True)
            self._thread.start()
            # A program may end without closing its saver.
            atexit.register(self.close)
        return self._home

    def close(self) -> None:
        """Refuse further calls; close the saver's own loop and the client in it."""
        self._driver.refuse()
        with self._lock:
            thread, loop, self._closed, self._thread = self._thread, self._home, True, None
        if thread is not None and loop is not None:
            atexit.unregister(self.close)
            asyncio.run_coroutine_threadsafe(self._shut_down(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    async def _shut_down(self) -> None:
        await self.drained()
        await self._driver.disconnect()
        # Calls that are refused now still have to tell their callers.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)


async def _started(call: Callable[[], Coroutine[Any, Any, A]]) -> A:
    return await call()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped, then clean it up as `asyncio.run` does."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
