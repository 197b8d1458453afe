"""Group commit: writes for one checkpoint that arrive while a batch of it is being put go into the next one together.

LangGraph calls `put_writes` once a task, many at once for parallel tasks. So twenty parallel tasks cost two requests,
and one task alone waits for nobody. A call returns only when the batch that holds its writes is stored.

The queue is pure; two fronts wait on it. A leader puts one batch, then hands the lead on, so that nobody leads for
ever. In asyncio the leader is a task of its own: a cancelled caller cancels nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import Generic, TypeVar

from manifests.writes import WriteRow
from s3_saver.refs import Ref

Rows = list[WriteRow]
W = TypeVar("W")


@dataclass
class Queue(Generic[W]):
    """Who waits for which checkpoint. `W` is what a waiting call waits on."""

    _waiting: dict[Ref, list[tuple[Rows, W]]] = field(default_factory=dict)

    def join(self, ref: Ref, rows: Rows, waiter: W) -> bool:
        """Wait with `rows`. True where nobody leads: then the caller does, and must `take`."""
        leads = ref not in self._waiting
        self._waiting.setdefault(ref, []).append((rows, waiter))
        return leads

    def take(self, ref: Ref) -> tuple[Rows, list[W]]:
        """All that wait, for the leader to put as one batch, in the order in which they came."""
        waiting, self._waiting[ref] = self._waiting[ref], []
        return [row for rows, _ in waiting for row in rows], [waiter for _, waiter in waiting]

    def hand_on(self, ref: Ref) -> W | None:
        """End a lead. The waiter that leads next, or None where none waits."""
        if self._waiting[ref]:
            return self._waiting[ref][0][1]
        del self._waiting[ref]
        return None

    def leave(self, ref: Ref, waiter: W) -> None:
        """Take a waiter's rows out of the next batch, where they are not in one yet."""
        if ref in self._waiting:
            self._waiting[ref] = [waiting for waiting in self._waiting[ref] if waiting[1] is not waiter]

    def give_up(self, ref: Ref) -> list[W]:
        """End a lead and everybody's waiting. Those who waited."""
        return [waiter for _, waiter in self._waiting.pop(ref)]


class ThreadCommits:
    """The front for threads. `put` stores one batch of a checkpoint's rows."""

    def __init__(self, put: Callable[[Ref, Rows], None]) -> None:
        self._put = put
        self._lock = Lock()
        self._queue: Queue[Future[bool]] = Queue()

    def submit(self, ref: Ref, rows: Rows) -> None:
        """Return when `rows` are stored, or raise what storing their batch raised."""
        # The future's result says whether its owner leads now (True), or its rows are stored (False).
        waiter: Future[bool] = Future()
        with self._lock:
            leads = self._queue.join(ref, rows, waiter)
        try:
            leads = leads or waiter.result()
        except BaseException:
            self._leave(ref, waiter)
            raise
        if leads:
            self._lead(ref, waiter)

    def _leave(self, ref: Ref, waiter: Future[bool]) -> None:
        """Wait no longer. A thread that is interrupted while it waits must not be left with the lead."""
        with self._lock:
            elected = waiter.done() and waiter.exception() is None and waiter.result()
            self._queue.leave(ref, waiter)
            following = self._queue.hand_on(ref) if elected else None
        if following is not None:
            following.set_result(True)

    def _lead(self, ref: Ref, own: Future[bool]) -> None:
        with self._lock:
            rows, waiters = self._queue.take(ref)
        error: BaseException | None = None
        try:
            self._put(ref, rows)
        except BaseException as raised:
            error = raised
            raise
        finally:
            with self._lock:
                following = self._queue.hand_on(ref)
                if following is not None:
                    following.set_result(True)
            for waiter in waiters:
                if waiter is not own:
                    _settle(waiter, error)


def _settle(waiter: Future[bool], error: BaseException | None) -> None:
    if error is None:
        waiter.set_result(False)
    else:
        waiter.set_exception(error)


class LoopCommits:
    """The front for one event loop."""

    def __init__(self, put: Callable[[Ref, Rows], Awaitable[None]]) -> None:
        self._put = put
        self._queue: Queue[asyncio.Future[None]] = Queue()
        self._leaders: set[asyncio.Task[None]] = set()

    async def submit(self, ref: Ref, rows: Rows) -> None:
        """Return when `rows` are stored, or raise what storing their batch raised."""
        waiter = asyncio.get_running_loop().create_future()
        if self._queue.join(ref, rows, waiter):
            leader = asyncio.create_task(self._lead(ref))
            self._leaders.add(leader)
            leader.add_done_callback(self._leaders.discard)
        await waiter

    async def _lead(self, ref: Ref) -> None:
        leads = True
        while leads:
            rows, waiters = self._queue.take(ref)
            error: Exception | None = None
            try:
                await self._put(ref, rows)
            except Exception as raised:
                error = raised
            except BaseException:
                # The loop is shutting down: whoever waits will get no answer.
                for waiter in (*waiters, *self._queue.give_up(ref)):
                    waiter.cancel()
                raise
            for waiter in waiters:
                if not waiter.done():  # its caller may have been cancelled
                    waiter.set_result(None) if error is None else waiter.set_exception(error)
            leads = self._queue.hand_on(ref) is not None

    async def drained(self) -> None:
        """Return when nothing is being put."""
        while self._leaders:
            await asyncio.wait(self._leaders)
