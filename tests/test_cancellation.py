"""Calls of `AsyncS3Saver` cancelled at each of their waits in turn, on a real server that sees the broken uploads.

A cancelled upload ends between its head and its body, or within it. SeaweedFS stored an empty object then, and no put
could replace it: the digest that goes with each put makes it refuse.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import pytest
from kit import checkpoint, config
from savers import Server, async_saver
from slow_proxy import SlowProxy

from s3_saver import AsyncS3Saver

A = TypeVar("A")

WAIT_SECONDS = 60
WAITS_MAX = 500
METADATA: Any = {"source": "loop", "step": 0, "parents": {}}
# Two values of these become objects of their own, which go out in one round before the checkpoint.
INLINE_LIMIT_BYTES = 100
VALUES = {"small": "x", "large": "y" * 10_000, "larger": "z" * 20_000}
VERSIONS = dict.fromkeys(VALUES, "1")


class Cancelling:
    """Awaits a coroutine and cancels the task that does, some time after it began its wait number `at`, from 1."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int, seconds: float) -> None:
        self._coroutine = coroutine
        self._at = at
        self._seconds = seconds

    def __await__(self) -> Generator[Any, Any, Any]:
        waits = 0
        sent: Any = None
        error: BaseException | None = None
        while True:
            try:
                future = self._coroutine.send(sent) if error is None else self._coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            waits += 1
            if waits == self._at:
                self._cancel()
            try:
                sent, error = (yield future), None
            except BaseException as raised:
                error = raised

    def _cancel(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        if self._seconds:
            asyncio.get_running_loop().call_later(self._seconds, task.cancel)
        else:
            task.cancel()


async def run_cancelled(coroutine: Coroutine[Any, Any, Any], at: int, seconds: float) -> bool:
    """Whether the coroutine was cancelled before it ended."""

    async def main() -> None:
        await Cancelling(coroutine, at, seconds)

    task = asyncio.create_task(main())
    await asyncio.wait([task])
    if task.cancelled():
        return True
    task.result()
    return False


async def within(awaitable: Awaitable[A]) -> A:
    return await asyncio.wait_for(awaitable, WAIT_SECONDS)


Open = Callable[[], AbstractAsyncContextManager[AsyncS3Saver]]


@pytest.fixture
def opened(seaweed: Server, prefix: str) -> Iterator[Open]:
    """Opens savers that reach a real server through a proxy, which makes each request take a while."""
    with SlowProxy(seaweed.endpoint_url, latency_ms=5) as proxy:
        there: Any = Through(proxy.url, seaweed)
        yield lambda: async_saver(there, prefix, inline_limit=INLINE_LIMIT_BYTES)


class Through:
    """A server behind a proxy."""

    def __init__(self, url: str, server: Server) -> None:
        self.endpoint_url = url
        self.access_key, self.secret_key = server.access_key, server.secret_key
        self.region, self.bucket = server.region, server.bucket


every_delay = pytest.mark.parametrize("seconds", [0, 0.002, 0.006])


@every_delay
async def test_cancelled_put_is_whole_or_absent(opened: Open, seconds: float) -> None:
    """Cancelled at any of its waits, a put leaves the whole checkpoint or none; the same put then succeeds."""
    cancelled, at = True, 0
    async with opened() as saver:
        while cancelled:
            at += 1
            made, where = checkpoint(VALUES, VERSIONS), config(f"t{at}")
            cancelled = await run_cancelled(saver.aput(where, made, METADATA, VERSIONS), at, seconds)
            found = await within(saver.aget_tuple(where))
            assert found is not None or cancelled
            assert found is None or found.checkpoint["channel_values"] == VALUES
            await within(saver.aput(where, made, METADATA, VERSIONS))
            found = await within(saver.aget_tuple(where))
            assert found is not None
            assert found.checkpoint["channel_values"] == VALUES
            assert at < WAITS_MAX
    assert at > 2


@every_delay
async def test_cancelled_put_writes_are_whole_or_absent(opened: Open, seconds: float) -> None:
    """Cancelled at any of its waits, a call leaves all of its writes or none; the next call works."""
    cancelled, at = True, 0
    async with opened() as saver:
        made = checkpoint(VALUES, VERSIONS)
        there: Any = await saver.aput(config("t"), made, METADATA, VERSIONS)
        while cancelled:
            at += 1
            writes = [("a", at), ("b", VALUES)]
            cancelled = await run_cancelled(saver.aput_writes(there, writes, f"task {at}"), at, seconds)
            await within(saver.aput_writes(there, [("c", at)], f"next {at}"))
            found = await within(saver.aget_tuple(there))
            assert found is not None
            stored = [write[1:] for write in found.pending_writes or [] if write[0] == f"task {at}"]
            assert stored in ([], writes)
            assert stored or cancelled
            assert (f"next {at}", "c", at) in (found.pending_writes or [])
            assert at < WAITS_MAX
    assert at > 1


@every_delay
async def test_cancelled_reads_leave_a_working_saver(opened: Open, seconds: float) -> None:
    """Cancelled at any of its waits, a read does not stand in the way of the next."""
    cancelled, at = True, 0
    async with opened() as saver:
        await saver.aput(config("t"), checkpoint(VALUES, VERSIONS), METADATA, VERSIONS)
        while cancelled:
            at += 1
            cancelled = await run_cancelled(saver.aget_tuple(config("t")), at, seconds)
            found = await within(saver.aget_tuple(config("t")))
            assert found is not None
            assert found.checkpoint["channel_values"] == VALUES
            assert at < WAITS_MAX
    assert at > 2


async def test_cancelled_while_connecting(seaweed: Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cancelled at any wait of the first call, which connects, a saver connects at the next and stays whole."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", seaweed.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", seaweed.secret_key)
    address = f"s3://{seaweed.bucket}/{prefix}?endpoint_url={seaweed.endpoint_url}&region_name={seaweed.region}"
    cancelled, at = True, 0
    while cancelled:
        at += 1
        async with AsyncS3Saver.from_conn_string(address, inline_limit=INLINE_LIMIT_BYTES) as saver:
            made, where = checkpoint(VALUES, VERSIONS), config(f"t{at}")
            cancelled = await run_cancelled(saver.aput(where, made, METADATA, VERSIONS), at, 0)
            await within(saver.aput(where, made, METADATA, VERSIONS))
            found = await within(saver.aget_tuple(where))
            assert found is not None
            assert found.checkpoint["channel_values"] == VALUES
            assert at < WAITS_MAX
