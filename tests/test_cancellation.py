"""Calls of `AsyncS3Saver` cancelled at each of their waits in turn, on a real server that also sees broken uploads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, TypeVar

import pytest
from aiobotocore.session import AioSession
from kit import checkpoint, config
from savers import Server
from slow_proxy import SlowProxy

from s3_saver import AsyncS3Saver
from s3_saver.clients import Connection

A = TypeVar("A")

WAIT_SECONDS = 60
METADATA: Any = {"source": "loop", "step": 0, "parents": {}}


async def within(coroutine: Coroutine[Any, Any, A]) -> A:
    return await asyncio.wait_for(coroutine, WAIT_SECONDS)


class _Cancelled:
    """Awaits a coroutine, and cancels the task that does at the wait number `at`, counted from 1."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], at: int) -> None:
        self._coroutine = coroutine
        self._at = at

    def __await__(self) -> Generator[Any, Any, Any]:
        waits = 0
        sent: Any = None
        while True:
            try:
                future = self._coroutine.send(sent)
            except StopIteration as stop:
                return stop.value
            waits += 1
            if waits == self._at:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                sent = yield future
            except BaseException as error:
                future = None
                self._throw(error)

    def _throw(self, error: BaseException) -> None:
        # What the coroutine does with its cancellation: it ends with it. Waiting on would be a fault.
        self._coroutine.throw(error)
        raise AssertionError("a cancelled call went on")


async def _run_cancelled(coroutine: Coroutine[Any, Any, Any], at: int) -> bool:
    """Whether the coroutine was cancelled before it ended."""

    async def main() -> None:
        await _Cancelled(coroutine, at)

    task = asyncio.create_task(main())
    await asyncio.wait([task])
    if task.cancelled():
        return True
    task.result()
    return False


@pytest.fixture
def slow(seaweed: Server, prefix: str) -> Iterator[tuple[SlowProxy, Callable[[], AsyncS3Saver]]]:
    """A proxy before the server, and a maker of savers through it."""
    with SlowProxy(seaweed.endpoint_url, latency_ms=5) as proxy:
        yield (
            proxy,
            lambda: saver_of(seaweed, CountingSession(seaweed), prefix, proxy.url, inline_limit=100),
        )


VALUES = {"small": "x", "large": "y" * 10_000, "larger": "z" * 20_000}
VERSIONS = dict.fromkeys(VALUES, "1")


@pytest.mark.parametrize("connected", [True, False])
async def test_cancelled_put_is_whole_or_absent(slow: Any, connected: bool) -> None:
    """Cancelled at any of its waits, a put leaves the whole checkpoint or none; the same put then succeeds."""
    for at in range(1, 500):
        async with slow[1]() as saver:
            if connected:
                await saver.aget_tuple(config("nobody"))
            made, where = checkpoint(VALUES, VERSIONS), config(f"t{at}")
            cancelled = await _run_cancelled(saver.aput(where, made, METADATA, VERSIONS), at)
            found = await within(saver.aget_tuple(where))
            assert found is None or found.checkpoint["channel_values"] == VALUES
            assert found is not None or cancelled
            await within(saver.aput(where, made, METADATA, VERSIONS))
            found = await saver.aget_tuple(where)
            assert found is not None
            assert found.checkpoint["channel_values"] == VALUES
        if not cancelled:
            break
    assert not cancelled
    assert at > 3


async def test_cancelled_put_writes_are_whole_or_absent(slow: Any) -> None:
    """Cancelled at any of its waits, a call leaves all of its writes or none; the next call works."""
    async with slow[1]() as saver:
        id = await aput(saver, "t")
        there = config("t", checkpoint_id=id)
        for at in range(1, 500):
            writes = [("a", at), ("b", VALUES)]
            cancelled = await _run_cancelled(saver.aput_writes(there, writes, f"task {at}"), at)
            await within(saver.aput_writes(there, [("c", at)], f"next {at}"))
            found = await saver.aget_tuple(there)
            assert found is not None
            stored = [write[1:] for write in found.pending_writes or [] if write[0] == f"task {at}"]
            assert stored in ([], writes)
            assert stored or cancelled
            assert (f"next {at}", "c", at) in (found.pending_writes or [])
            if not cancelled:
                break
        assert not cancelled


async def test_cancelled_reads_leave_a_working_saver(slow: Any) -> None:
    """Cancelled at any of its waits, a read does not stand in the way of the next."""
    for at in range(1, 500):
        async with slow[1]() as saver:
            if at == 1:
                await saver.aput(config("t"), checkpoint(VALUES, VERSIONS), METADATA, VERSIONS)
            cancelled = await _run_cancelled(saver.aget_tuple(config("t")), at)
            found = await within(saver.aget_tuple(config("t")))
            assert found is not None
            assert found.checkpoint["channel_values"] == VALUES
        if not cancelled:
            break
    assert not cancelled
