"""Runs operations with aiobotocore (also as aioboto3 makes it): one client for each event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from s3_saver.bucket import Get, Now, Operation, Request, Round, Work
from s3_saver.drivers import s3
from s3_saver.drivers.clock import now
from s3_saver.errors import SaverClosedError

A = TypeVar("A")

# Computing on more bytes than this would hold up the event loop for milliseconds.
_OFF_LOOP_BYTES = 65_536


@dataclass
class _Connection:
    client: Any
    limit: asyncio.Semaphore
    lifetime: AsyncGenerator[Any, None] | None


class AioDriver:
    """Holds what clones of a saver share: a client for each event loop that the saver is used in.

    `connect` opens a client in the running loop. A client is closed by `aclose` in its loop, or when that loop shuts
    down its asynchronous generators, as `asyncio.run` does at its end. `client`, where given, is the caller's, lives
    in one loop and stays open.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[Any]],
        *,
        client: Any = None,
        bucket: str,
        put_extra_args: Mapping[str, Any],
        max_concurrency: int,
    ) -> None:
        self._connect = connect
        self._given = client
        self._bucket = bucket
        self._extra = put_extra_args
        self._max_concurrency = max_concurrency
        self._lock = Lock()
        self._opening: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[_Connection]] = WeakKeyDictionary()
        self._closed = False

    async def arun(self, operation: Operation[A], first: Round | None = None) -> A:
        """Run `operation` in the running loop, from its beginning or from its `first` round on."""
        try:
            round_ = operation.send(None) if first is None else first  # type: ignore[arg-type]
            while True:
                try:
                    answers = await self._answer(round_)
                except Exception as error:
                    round_ = operation.throw(error)
                else:
                    round_ = operation.send(answers)
        except StopIteration as stop:
            result: A = stop.value
            return result
        finally:
            operation.close()

    async def disconnect(self) -> None:
        """Close the running loop's client, if it has one, after the requests that are under way."""
        with self._lock:
            opening = self._opening.pop(asyncio.get_running_loop(), None)
        if opening is None:
            return
        try:
            connection = await opening
        except Exception:
            return  # it was never open, and whoever asked for it was told why
        # Who asks for all places gets the last one when the requests that came before have their answers.
        for _ in range(self._max_concurrency):
            await connection.limit.acquire()
        if connection.lifetime is None:
            s3.ignore_deadlines(connection.client.meta.events)
        else:
            await connection.lifetime.aclose()

    def refuse(self) -> None:
        """Refuse further requests. Clients of other loops are closed with these at the latest."""
        self._closed = True

    async def aclose(self) -> None:
        self.refuse()
        await self.disconnect()

    async def _connected(self) -> _Connection:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._closed:
                raise SaverClosedError("this saver was closed; make a new one")
            opening = self._opening.get(loop)
            if opening is None or (opening.done() and (opening.cancelled() or opening.exception())):
                # A task of its own: the caller that came first may be cancelled, the others still want the client.
                opening = self._opening[loop] = loop.create_task(self._open())
        return await asyncio.shield(opening)

    async def _open(self) -> _Connection:
        limit = asyncio.Semaphore(self._max_concurrency)
        if self._given is not None:
            s3.watch_deadlines(self._given.meta.events)
            return _Connection(self._given, limit, None)
        lifetime = self._lifetime()
        return _Connection(await anext(lifetime), limit, lifetime)

    async def _lifetime(self) -> AsyncGenerator[Any, None]:
        """Yields an open client once. The loop closes generators that are left over, and so the client."""
        try:
            async with self._connect() as client:
                s3.watch_deadlines(client.meta.events)
                yield client
        finally:
            # The client refers to the loop, so that the entry would keep both.
            with self._lock:
                self._opening.pop(asyncio.get_running_loop(), None)

    async def _answer(self, round_: Round) -> list[Any]:
        if len(round_) == 1:
            return [await self._one(round_[0])]
        # All of the round has ended before an error of it rises.
        answers = await asyncio.gather(*(self._one(request) for request in round_), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    async def _one(self, request: Request[Any]) -> Any:
        if isinstance(request, Now):
            return now()
        if isinstance(request, Work):
            return request.run() if request.size < _OFF_LOOP_BYTES else await asyncio.to_thread(request.run)
        try:
            connection = await self._connected()
        except Exception as error:
            return s3.outcome_of(request, error, bucket=self._bucket)
        async with connection.limit:
            return await self._try(connection.client, request)

    async def _try(self, client: Any, request: Request[Any]) -> Any:
        for attempt in range(s3.ATTEMPTS_MAX):
            try:
                return await self._send(client, request)
            except Exception as error:
                try:
                    return s3.outcome_of(request, error, bucket=self._bucket)
                except s3.Again as again:
                    if attempt + 1 == s3.ATTEMPTS_MAX:
                        return s3.given_up(request, again, bucket=self._bucket)
            await asyncio.sleep(s3.pause_seconds(attempt))
        raise AssertionError("unreachable")

    async def _send(self, client: Any, request: Request[Any]) -> Any:
        region = client.meta.region_name
        name, arguments = s3.call_of(request, bucket=self._bucket, extra=self._extra, region=region)
        with s3.deadline_of(request):
            response = await getattr(client, name)(**arguments)
        return s3.answer_of(request, response, await _body(response) if isinstance(request, Get) else b"")


async def _body(response: Any) -> bytes:
    try:
        async with response["Body"] as stream:
            data: bytes = await stream.read()
    except Exception as error:
        raise s3.Again from error
    return data
