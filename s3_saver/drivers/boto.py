"""Runs operations with boto3: a round of one in the caller's thread, more in a pool."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

from s3_saver.bucket import Get, Now, Operation, Request, Round, Work
from s3_saver.drivers import s3
from s3_saver.drivers.clock import now
from s3_saver.drivers.steps import drive
from s3_saver.errors import SaverClosedError

A = TypeVar("A")

# Threads that run whole calls for asyncio callers. They mostly wait, so there are more than requests at once.
_CALLS_MAX = 64


class BotoDriver:
    """Holds what is made once and shared by clones of a saver: the client and the pools. All methods are thread-safe.

    `connect` makes the client at the first request; `owned` says whether `close` closes it.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        *,
        owned: bool,
        bucket: str,
        put_extra_args: Mapping[str, Any],
        max_concurrency: int,
    ) -> None:
        self._connect = connect
        self._owned = owned
        self._bucket = bucket
        self._extra = put_extra_args
        self._requests = ThreadPoolExecutor(max_concurrency, "s3-saver-request")
        self._calls = ThreadPoolExecutor(_CALLS_MAX, "s3-saver-call")
        self._lock = Lock()
        self._client: Any = None
        self._closed = False

    def run(self, operation: Operation[A]) -> A:
        """Run `operation` in this thread."""
        return drive(operation, self._answer)

    async def arun(self, operation: Operation[A]) -> A:
        """Run `operation` up to its first round here, and from there on in a thread.

        What it does before it first waits must see the caller's objects as they are now: a serialization that
        happens later, in a thread, could store what the next superstep has made of them.
        """
        try:
            first = operation.send(None)  # type: ignore[arg-type]
        except StopIteration as stop:
            result: A = stop.value
            return result
        return await self.in_thread(lambda: drive(operation, self._answer, first))

    async def in_thread(self, call: Callable[[], A]) -> A:
        """Run a blocking call beside the event loop."""
        if self._closed:
            raise _closed()
        return await asyncio.get_running_loop().run_in_executor(self._calls, call)

    def close(self) -> None:
        with self._lock:
            client, self._client, self._closed = self._client, None, True
        self._calls.shutdown()
        self._requests.shutdown()
        if client is not None:
            s3.ignore_deadlines(client.meta.events)
            if self._owned:
                client.close()

    async def aclose(self) -> None:
        await asyncio.to_thread(self.close)

    def _connected(self) -> Any:
        if self._client is None:
            with self._lock:
                if self._closed:
                    raise _closed()
                if self._client is None:
                    client = self._connect()
                    s3.watch_deadlines(client.meta.events)
                    self._client = client
        return self._client

    def _answer(self, round_: Round) -> list[Any]:
        if len(round_) == 1:
            return [self._one(round_[0])]
        if self._closed:
            raise _closed()
        futures = [self._requests.submit(self._one, request) for request in round_]
        # All of the round has ended before an error of it rises.
        errors = [future.exception() for future in futures]
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def _one(self, request: Request[Any]) -> Any:
        if isinstance(request, Work):
            return request.run()
        if isinstance(request, Now):
            return now()
        for attempt in range(s3.ATTEMPTS_MAX):
            try:
                return self._send(request)
            except Exception as error:
                try:
                    return s3.outcome_of(request, error, bucket=self._bucket)
                except s3.Again as again:
                    if attempt + 1 == s3.ATTEMPTS_MAX:
                        return s3.given_up(request, again, bucket=self._bucket)
            time.sleep(s3.pause_seconds(attempt))
        raise AssertionError("unreachable")

    def _send(self, request: Request[Any]) -> Any:
        client = self._connected()
        region = client.meta.region_name
        name, arguments = s3.call_of(request, bucket=self._bucket, extra=self._extra, region=region)
        with s3.deadline_of(request):
            response = getattr(client, name)(**arguments)
        return s3.answer_of(request, response, _body(response) if isinstance(request, Get) else b"")


def _body(response: Any) -> bytes:
    try:
        data: bytes = response["Body"].read()
    except Exception as error:
        raise s3.Again from error
    return data


def _closed() -> SaverClosedError:
    return SaverClosedError("this saver was closed; make a new one")
