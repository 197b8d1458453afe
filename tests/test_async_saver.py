"""How savers live: made anywhere, used from any loop and thread, cancelled, cloned, closed."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any

import boto3
import pytest
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.config import Config
from conftest import MotoServer
from kit import WAIT_SECONDS, Background, checkpoint, config, values_at, writes_at
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from savers import credentials
from slow_proxy import SlowProxy

from s3_saver import AsyncS3Saver, S3Saver, SaverClosedError

STRICT = JsonPlusSerializer(allowed_msgpack_modules=None)
SETTINGS: dict[str, Any] = {
    "s3": {"addressing_style": "path"},
    "retries": {"mode": "standard", "total_max_attempts": 2},
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
    "max_pool_connections": 32,
}

# Made while the module is imported: no loop, no credentials, no server.
AT_IMPORT = AsyncS3Saver("checkpoints", prefix="made-at-import")

both_savers = pytest.mark.parametrize("cls", [S3Saver, AsyncS3Saver])


@cache
def aio_session() -> Any:
    """One session for all: it reads the description of S3 only once."""
    return get_session()


class CountingSession:
    """A session that knows how many clients it made, and the loops of those that are open."""

    def __init__(self, server: MotoServer) -> None:
        self.server = server
        self.lock = threading.Lock()
        self.made = 0
        self.open: list[int] = []

    def get_config_variable(self, name: str) -> str:
        return {"region": self.server.region}[name]

    def create_client(self, service: str, **settings: Any) -> Counted:
        return Counted(self, aio_session().create_client(service, **(settings | credentials(self.server))))


class Counted:
    """A client's context. No generator: a loop that ends closes all of these at once, the inner ones too."""

    def __init__(self, session: CountingSession, context: Any) -> None:
        self._session = session
        self._context = context
        self._loop = 0

    async def __aenter__(self) -> Any:
        client = await self._context.__aenter__()
        self._loop = id(asyncio.get_running_loop())
        with self._session.lock:
            self._session.made += 1
            self._session.open.append(self._loop)
        return client

    async def __aexit__(self, *error: Any) -> None:
        await self._context.__aexit__(*error)
        with self._session.lock:
            self._session.open.remove(self._loop)


@pytest.fixture
def session(moto_server: MotoServer) -> CountingSession:
    return CountingSession(moto_server)


@pytest.fixture
def environment(moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials and endpoint where the usual chain finds them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", moto_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", moto_server.secret_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto_server.endpoint_url)


@contextmanager
def sync_client(server: MotoServer) -> Iterator[Any]:
    client = boto3.client("s3", config=Config(**SETTINGS), **credentials(server))
    try:
        yield client
    finally:
        client.close()


def async_client(server: MotoServer) -> Any:
    return aio_session().create_client("s3", config=AioConfig(**SETTINGS), **credentials(server))


@asynccontextmanager
async def opened(cls: type, server: MotoServer, prefix: str, **settings: Any) -> AsyncIterator[Any]:
    """A saver of either kind on a client of its own, both closed at the end."""
    if cls is S3Saver:
        with sync_client(server) as client:
            async with S3Saver(server.bucket, prefix=prefix, client=client, **settings) as saver:
                yield saver
    else:
        async with (
            async_client(server) as client,
            AsyncS3Saver(server.bucket, prefix=prefix, client=client, **settings) as saver,
        ):
            yield saver


def use(saver: Any, thread_id: str = "t") -> None:
    """Each kind of sync method once."""
    stored = saver.put(config(thread_id), checkpoint({"k": 1}, {"k": "1"}), {}, {"k": "1"})
    saver.put_writes(stored, [("x", 1)], "task")
    assert values_at(saver, stored) == {"k": 1}
    assert writes_at(saver, stored) == [("task", "x", 1)]
    assert len(list(saver.list(config(thread_id)))) == 1
    saver.delete_thread(thread_id)


async def ause(saver: Any, thread_id: str = "t") -> None:
    """Each kind of async method once."""
    stored = await saver.aput(config(thread_id), checkpoint({"k": 1}, {"k": "1"}), {}, {"k": "1"})
    await saver.aput_writes(stored, [("x", 1)], "task")
    item = await saver.aget_tuple(stored)
    assert item.checkpoint["channel_values"] == {"k": 1}
    assert item.pending_writes == [("task", "x", 1)]
    assert len([one async for one in saver.alist(config(thread_id))]) == 1
    await saver.adelete_thread(thread_id)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """`asyncio.run`, in time."""
    return asyncio.run(asyncio.wait_for(coroutine, WAIT_SECONDS))


def together(count: int, call: Callable[[int], Any]) -> list[Any]:
    """`call` with each number at once, in threads that start together."""
    barrier = threading.Barrier(count)

    def start(number: int) -> Any:
        barrier.wait(WAIT_SECONDS)
        return call(number)

    return [call.result() for call in [Background(lambda number=number: start(number)) for number in range(count)]]


# Made anywhere, used in any loop


@pytest.mark.usefixtures("environment")
def test_made_at_import(prefix: str) -> None:
    """A saver that was made at import, without a loop, connects at the first request and works in loop after loop."""
    assert AT_IMPORT._shared.settings.bucket == "checkpoints"
    run(ause(AT_IMPORT, prefix))
    run(ause(AT_IMPORT, prefix))
    gc.collect()  # a client left open would warn now, and a warning is an error


def test_connects_at_the_first_request(session: CountingSession, moto_server: MotoServer, prefix: str) -> None:
    """Making a saver, and closing it unused, opens no client and starts no thread."""
    threads = threading.active_count()
    saver = AsyncS3Saver(moto_server.bucket, prefix=prefix, session=session)
    saver.get_next_version(None, None)
    saver.close()
    run(AsyncS3Saver(moto_server.bucket, prefix=prefix, session=session).aclose())
    assert session.made == 0
    assert threading.active_count() <= threads


def test_one_loop_after_another(session: CountingSession, moto_server: MotoServer, prefix: str) -> None:
    """Each `asyncio.run` has its own client, one at a time, closed with the loop though nobody closes the saver."""
    saver = AsyncS3Saver(moto_server.bucket, prefix=prefix, session=session)
    most = []

    async def twice() -> None:
        await ause(saver)
        made = session.made
        await asyncio.gather(*(ause(saver, f"t{number}") for number in range(4)))
        assert session.made == made
        most.append(len(session.open))

    for _ in range(3):
        run(twice())
        assert session.open == []
    assert most == [1, 1, 1]
    gc.collect()


def test_loops_are_let_go(session: CountingSession, moto_server: MotoServer, prefix: str) -> None:
    """A saver keeps neither a loop that has ended nor its client."""
    saver = AsyncS3Saver(moto_server.bucket, prefix=prefix, session=session)

    async def loop() -> weakref.ref[asyncio.AbstractEventLoop]:
        await ause(saver)
        return weakref.ref(asyncio.get_running_loop())

    ended = run(loop())
    gc.collect()
    assert ended() is None


def test_first_callers_share_a_client(session: CountingSession, moto_server: MotoServer, prefix: str) -> None:
    """Callers that come while the client is being opened wait for it, also when the first of them is cancelled."""

    async def crowd() -> None:
        async with AsyncS3Saver(moto_server.bucket, prefix=prefix, session=session) as saver:
            callers = [asyncio.create_task(ause(saver, f"t{number}")) for number in range(5)]
            await asyncio.sleep(0)
            callers[0].cancel()
            outcomes = await asyncio.gather(*callers, return_exceptions=True)
            assert isinstance(outcomes[0], asyncio.CancelledError)
            assert outcomes[1:] == [None] * 4
            assert len(session.open) == 1

    run(crowd())
    assert session.open == []


def test_two_loops_at_once(session: CountingSession, moto_server: MotoServer, prefix: str) -> None:
    """Two threads with a loop each use one saver at the same time, with one client each."""
    saver = AsyncS3Saver(moto_server.bucket, prefix=prefix, session=session)
    both = threading.Barrier(2)
    clients: list[int] = []

    async def work(number: int) -> None:
        await ause(saver, f"t{number}")
        await asyncio.to_thread(both.wait, WAIT_SECONDS)
        clients.append(session.open.count(id(asyncio.get_running_loop())))
        await asyncio.gather(*(ause(saver, f"t{number}-{other}") for other in range(3)))

    together(2, lambda number: run(work(number)))
    assert clients == [1, 1]
    assert session.open == []
    run(saver.aclose())


@pytest.mark.usefixtures("environment")
def test_two_first_loops_at_once(moto_server: MotoServer, prefix: str) -> None:
    """Loops that both need their first client at the same moment, from the default session, both get one."""
    saver = AsyncS3Saver(moto_server.bucket, prefix=prefix)
    together(4, lambda number: run(ause(saver, f"t{number}")))
    saver.close()


def test_loop_that_ends_amid_writes(session: CountingSession, moto_server: MotoServer, prefix: str) -> None:
    """A loop that ends while calls are under way leaves no warning, and the next loop works."""
    with SlowProxy(moto_server.endpoint_url, latency_ms=100) as proxy:
        slow = CountingSession(replace(moto_server, endpoint_url=proxy.url))
        saver = AsyncS3Saver(moto_server.bucket, prefix=prefix, session=slow)

        async def abandon() -> list[asyncio.Task[Any]]:
            await saver.aget_tuple(config())
            calls = [
                asyncio.create_task(saver.aput_writes(config("t", "", "1"), [("x", number)], f"task {number}"))
                for number in range(3)
            ]
            calls.append(asyncio.create_task(saver.aput(config(), checkpoint(), {}, {})))
            await asyncio.sleep(0.02)
            return calls

        assert all(call.cancelled() for call in run(abandon()))
        assert slow.open == []
        run(ause(saver))
        gc.collect()


SCRIPT = """
    import asyncio, sys
    from s3_saver import AsyncS3Saver, S3Saver

    saver = {cls}("{bucket}", prefix="{prefix}")

    async def main():
        await saver.aget_tuple({{"configurable": {{"thread_id": "t"}}}})

    for _ in range(2):
        asyncio.run(main())
        saver.get_tuple({{"configurable": {{"thread_id": "t"}}}})
"""


@both_savers
def test_a_process_that_closes_nothing(moto_server: MotoServer, prefix: str, cls: type) -> None:
    """A program that used loops and sync methods, and never closes its saver, ends in time and without a warning."""
    script = textwrap.dedent(SCRIPT.format(cls=cls.__name__, bucket=moto_server.bucket, prefix=prefix))
    keys = {"AWS_ACCESS_KEY_ID": moto_server.access_key, "AWS_SECRET_ACCESS_KEY": moto_server.secret_key}
    outcome = subprocess.run(
        [sys.executable, "-W", "default::ResourceWarning", "-c", script],
        env={**os.environ, **keys, "AWS_ENDPOINT_URL_S3": moto_server.endpoint_url},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # Import-time warnings of other packages are not ours; a resource left open is.
    assert outcome.returncode == 0, outcome.stderr
    assert "ResourceWarning" not in outcome.stderr
    assert "Unclosed" not in outcome.stderr
    assert "Error" not in outcome.stderr


# Sync methods of the async saver


def test_sync_methods_from_threads(session: CountingSession, moto_server: MotoServer, prefix: str) -> None:
    """Sync methods work from several threads at once, on one client that they share."""
    with AsyncS3Saver(moto_server.bucket, prefix=prefix, session=session) as saver:
        together(4, lambda number: use(saver, f"t{number}"))
        assert len(session.open) == 1
    assert session.open == []


def test_sync_methods_beside_a_loop(session: CountingSession, moto_server: MotoServer, prefix: str) -> None:
    """On a running loop's own thread, and in threads beside it, sync methods work; the saver has two clients then."""

    async def calls() -> None:
        async with AsyncS3Saver(moto_server.bucket, prefix=prefix, session=session) as saver:
            use(saver)
            beside = asyncio.create_task(ause(saver, "beside"))
            await asyncio.sleep(0)
            use(saver)  # holds up the task, not itself
            await beside
            await asyncio.gather(asyncio.to_thread(use, saver, "thread"), ause(saver, "loop"))
            assert len(session.open) == 2
        assert session.open == []

    Background(lambda: run(calls())).result()


def test_injected_async_client(moto_server: MotoServer, prefix: str) -> None:
    """Sync calls run on the client's loop: from other threads they work, on the loop itself they raise at once."""

    async def calls() -> None:
        async with async_client(moto_server) as client:
            saver = AsyncS3Saver(moto_server.bucket, prefix=prefix, client=client)
            await asyncio.to_thread(use, saver)
            stored = await saver.aput(config(), checkpoint(), {}, {})
            for call in (
                lambda: saver.get_tuple(stored),
                lambda: next(saver.list(config())),
                lambda: saver.put(config(), checkpoint(), {}, {}),
                lambda: saver.put_writes(stored, [("x", 1)], "task"),
                lambda: saver.delete_thread("t"),
            ):
                with pytest.raises(asyncio.InvalidStateError, match="async"):
                    call()
            await asyncio.gather(*(asyncio.to_thread(use, saver, f"t{number}") for number in range(3)))
            await saver.aclose()
            await saver.aclose()
            assert (await client.list_objects_v2(Bucket=moto_server.bucket, Prefix=prefix))["KeyCount"] > 0

    Background(lambda: run(calls())).result()


def test_injected_async_client_without_a_running_loop(moto_server: MotoServer, prefix: str) -> None:
    """A sync call raises `RuntimeError` while the client's loop does not run; when it runs again, all works again."""
    loop = asyncio.new_event_loop()
    context = async_client(moto_server)
    client = loop.run_until_complete(context.__aenter__())
    saver = AsyncS3Saver(moto_server.bucket, prefix=prefix, client=client)
    with pytest.raises(RuntimeError, match="not running"):
        saver.get_tuple(config())
    for _ in range(2):
        loop.run_until_complete(ause(saver))
        with pytest.raises(RuntimeError, match="not running"):
            saver.put_writes(config("t", "", "1"), [("x", 1)], "task")
    loop.run_until_complete(asyncio.to_thread(use, saver))
    saver.close()
    loop.run_until_complete(client.head_bucket(Bucket=moto_server.bucket))
    loop.run_until_complete(context.__aexit__(None, None, None))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


# Closing


def test_injected_sync_client_stays_open(moto_server: MotoServer, prefix: str) -> None:
    """`close` and `aclose` of `S3Saver` leave the caller's client open."""
    with sync_client(moto_server) as client:
        for close in (S3Saver.close, lambda saver: run(saver.aclose())):
            saver = S3Saver(moto_server.bucket, prefix=prefix, client=client)
            use(saver)
            close(saver)
            client.head_bucket(Bucket=moto_server.bucket)


@pytest.mark.usefixtures("environment")
@both_savers
def test_closing_twice(moto_server: MotoServer, prefix: str, cls: type) -> None:
    """`close` and `aclose`, in any order and number, of used and unused savers, do nothing more than one of them."""

    async def ends(saver: Any, *closes: str) -> None:
        for name in closes:
            outcome = getattr(saver, name)()
            if outcome is not None:
                await outcome

    for closes in (["close", "aclose", "close"], ["aclose", "aclose"]):
        run(ends(cls(moto_server.bucket, prefix=prefix), *closes))
        saver = cls(moto_server.bucket, prefix=prefix)
        use(saver)
        run(ause(saver))
        run(ends(saver, *closes))
        saver.close()

        async def within(closes: list[str] = closes) -> None:
            saver = cls(moto_server.bucket, prefix=prefix)
            await ause(saver)
            await ends(saver, *closes)

        run(within())
    gc.collect()


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize("used", [True, False])
@both_savers
def test_use_after_close(moto_server: MotoServer, prefix: str, cls: type, used: bool) -> None:
    """Every method that would send a request raises `SaverClosedError`, in both colours."""
    saver = cls(moto_server.bucket, prefix=prefix)
    where = config("t", "", "1")
    if used:
        use(saver)
    saver.close()
    for call in (
        lambda: saver.get_tuple(where),
        lambda: list(saver.list(config())),
        lambda: saver.put(config(), checkpoint(), {}, {}),
        lambda: saver.put_writes(where, [("x", 1)], "task"),
        lambda: saver.delete_thread("t"),
        lambda: saver.get_delta_channel_history(config=where, channels=["x"]),
        lambda: saver.setup(),
        lambda: run(saver.aget_tuple(where)),
        lambda: run(anext(saver.alist(config()))),
        lambda: run(saver.aput(config(), checkpoint(), {}, {})),
        lambda: run(saver.aput_writes(where, [("x", 1)], "task")),
        lambda: run(saver.adelete_thread("t")),
        lambda: run(saver.aget_delta_channel_history(config=where, channels=["x"])),
        lambda: run(saver.asetup()),
    ):
        with pytest.raises(SaverClosedError, match="closed"):
            call()


@pytest.mark.usefixtures("environment")
@both_savers
def test_with_blocks(moto_server: MotoServer, prefix: str, cls: type) -> None:
    """`with` and `async with` yield the saver itself and close it, also when the block raises."""
    made = cls(moto_server.bucket, prefix=prefix)
    with pytest.raises(ZeroDivisionError), made as saver:
        assert saver is made
        use(saver)
        1 / 0
    with pytest.raises(SaverClosedError):
        made.get_tuple(config())

    async def block() -> None:
        made = cls(moto_server.bucket, prefix=prefix)
        with pytest.raises(ZeroDivisionError):
            async with made as saver:
                assert saver is made
                await ause(saver)
                1 / 0
        with pytest.raises(SaverClosedError):
            await made.aget_tuple(config())

    run(block())


@pytest.mark.usefixtures("environment")
def test_from_conn_string(moto_server: MotoServer, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both savers come from a connection string, work, see the same bucket, and are closed at the block's end."""
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")  # the string alone says where
    text = f"s3://{moto_server.bucket}/{prefix}?region_name=us-east-1&endpoint_url={moto_server.endpoint_url}"
    with S3Saver.from_conn_string(text, serde=STRICT) as sync:
        assert sync.serde is STRICT
        use(sync)
        stored = sync.put(config(), checkpoint({"k": 1}, {"k": "1"}), {}, {"k": "1"})
    with pytest.raises(SaverClosedError):
        sync.get_tuple(config())

    async def block() -> AsyncS3Saver:
        async with AsyncS3Saver.from_conn_string(text, serde=STRICT) as saver:
            assert saver.serde is STRICT
            item = await saver.aget_tuple(stored)
            assert item is not None
            assert item.checkpoint["channel_values"] == {"k": 1}
            await ause(saver, "other")
        return saver

    closed = run(block())
    with pytest.raises(SaverClosedError):
        closed.get_tuple(config())


@both_savers
def test_closing_amid_a_sync_call(moto_server: MotoServer, prefix: str, cls: type) -> None:
    """A sync call that is under way when another thread closes the saver succeeds or fails clearly; none hangs."""
    with SlowProxy(moto_server.endpoint_url, latency_ms=60) as proxy:
        there = replace(moto_server, endpoint_url=proxy.url)
        for number in range(4):
            with sync_client(there) as client:
                injected = {"client": client} if cls is S3Saver else {"session": CountingSession(there)}
                saver = cls(moto_server.bucket, prefix=prefix, **injected)
                saver.get_tuple(config())
                calls = [
                    Background(lambda saver=saver, number=number: use(saver, f"t{number}")),
                    Background(lambda saver=saver: saver.put_writes(config("t", "", "1"), [("x", 1)], "task")),
                ]
                threading.Event().wait(0.05 * number)
                Background(saver.close).result()
                for call in calls:
                    with suppress(SaverClosedError):
                        call.result()


@both_savers
def test_closing_amid_an_async_call(moto_server: MotoServer, prefix: str, cls: type) -> None:
    """An async call that is under way when the saver is closed succeeds or fails clearly; none hangs."""
    with SlowProxy(moto_server.endpoint_url, latency_ms=60) as proxy:
        there = replace(moto_server, endpoint_url=proxy.url)

        async def close_early(number: int) -> None:
            with sync_client(there) as client:
                injected = {"client": client} if cls is S3Saver else {"session": CountingSession(there)}
                saver = cls(moto_server.bucket, prefix=prefix, **injected)
                await saver.aget_tuple(config())
                calls = [
                    asyncio.create_task(ause(saver, f"t{number}")),
                    asyncio.create_task(saver.aput_writes(config("t", "", "1"), [("x", 1)], "task")),
                ]
                await asyncio.sleep(0.05 * number)
                await saver.aclose()
                for call in calls:
                    with suppress(SaverClosedError):
                        await call

        for number in range(4):
            run(close_early(number))


# Clones


def shared(saver: Any, clone: Any) -> bool:
    """Whether the clone has the saver's own attributes, all but the serializer and the mark of a clone."""
    return vars(saver).keys() == vars(clone).keys() and all(
        vars(clone)[name] is value for name, value in vars(saver).items() if name not in {"serde", "_clone"}
    )


def test_clones_share(session: CountingSession, moto_server: MotoServer, prefix: str) -> None:
    """Clones share the one client; closing or collecting them closes nothing; closing the saver ends them all."""

    async def block() -> None:
        saver = AsyncS3Saver(moto_server.bucket, prefix=prefix, session=session, serde=STRICT)
        early = saver.with_allowlist([("module", "Early")])
        assert early is not saver
        assert early.serde is not saver.serde
        await ause(early)
        made = session.made
        clones = [saver.with_allowlist([("module", f"Class{number}")]) for number in range(1000)]
        assert all(shared(saver, clone) for clone in (early, *clones))
        await ause(clones[0])
        await clones[0].aclose()
        await asyncio.to_thread(clones[1].close)
        async with clones[2] as clone:
            await ause(clone)
        del clone, clones
        gc.collect()
        await ause(saver)
        await ause(early)
        assert session.made == made
        assert len(session.open) == 1
        await saver.aclose()
        assert session.open == []
        with pytest.raises(SaverClosedError):
            await early.aget_tuple(config())

    run(block())


def test_clones_of_the_sync_saver_share(moto_server: MotoServer, prefix: str) -> None:
    """The same of `S3Saver`; a thousand clones start no thread."""
    with (
        sync_client(moto_server) as client,
        S3Saver(moto_server.bucket, prefix=prefix, client=client, serde=STRICT) as saver,
    ):
        use(saver)
        threads = threading.active_count()
        clones = [saver.with_allowlist([("module", f"Class{number}")]) for number in range(1000)]
        assert all(clone is not saver and shared(saver, clone) for clone in clones)
        assert threading.active_count() <= threads
        clones[0].close()
        with clones[1] as clone:
            use(clone)
        del clone, clones
        gc.collect()
        use(saver)


def test_a_clone_outlives_its_original(session: CountingSession, moto_server: MotoServer, prefix: str) -> None:
    """A clone works, in loops and out of them, after the saver that it was made from was collected."""
    saver = AsyncS3Saver(moto_server.bucket, prefix=prefix, session=session, serde=STRICT)
    clone = saver.with_allowlist([("module", "Class")])
    run(ause(saver))
    use(saver)
    gone = weakref.ref(saver)
    loops = saver._loops
    del saver
    gc.collect()
    assert gone() is None
    run(ause(clone))
    use(clone)
    loops.close()
    assert session.open == []


# Cancelling


BIG = "x" * 70_000
STEP_SECONDS = 0.004


@both_savers
async def test_cancelled_put(moto_server: MotoServer, prefix: str, cls: type) -> None:
    """Wherever `aput` is cancelled, the checkpoint is whole or absent, and the same call succeeds afterwards."""
    with SlowProxy(moto_server.endpoint_url, latency_ms=8) as proxy:
        there = replace(moto_server, endpoint_url=proxy.url)
        async with opened(cls, there, prefix) as saver, opened(cls, moto_server, prefix) as reader:
            await saver.aget_tuple(config("warm"))
            outcomes = []
            for number in range(60):
                values = {"small": number, "big": BIG + str(number)}
                given = checkpoint(values, {"small": "1", "big": "1"})
                call = (config(f"t{number}"), given, {"source": "loop"}, given["channel_versions"])
                put = asyncio.create_task(saver.aput(*call))
                await asyncio.sleep(number * STEP_SECONDS)
                put.cancel()
                outcome = (await asyncio.gather(put, return_exceptions=True))[0]
                outcomes.append(isinstance(outcome, asyncio.CancelledError))
                item = await reader.aget_tuple(config(f"t{number}", "", given["id"]))
                assert item is None or item.checkpoint["channel_values"] == values
                stored = await asyncio.wait_for(saver.aput(*call), WAIT_SECONDS)
                item = await reader.aget_tuple(stored)
                assert item.checkpoint["channel_values"] == values
                assert len([one async for one in reader.alist(config(f"t{number}"))]) == 1
                if not outcomes[-1]:
                    break
    # It was cancelled at many places, and the last one came too late.
    assert outcomes.count(True) >= 3
    assert not outcomes[-1]


@both_savers
async def test_cancelled_put_writes(moto_server: MotoServer, prefix: str, cls: type) -> None:
    """Wherever `aput_writes` is cancelled, a task's writes are whole or absent, and the next call stores them."""
    with SlowProxy(moto_server.endpoint_url, latency_ms=20) as proxy:
        there = replace(moto_server, endpoint_url=proxy.url)
        async with opened(cls, there, prefix) as saver:
            await saver.aget_tuple(config("warm"))
            cancelled = []
            for number in range(60):
                stored = await saver.aput(config(f"t{number}"), checkpoint(), {}, {})
                writes = [("a", number), ("b", BIG)]
                call = asyncio.create_task(saver.aput_writes(stored, writes, "task"))
                await asyncio.sleep(number * STEP_SECONDS)
                call.cancel()
                outcome = (await asyncio.gather(call, return_exceptions=True))[0]
                cancelled.append(isinstance(outcome, asyncio.CancelledError))
                whole = [("task", channel, value) for channel, value in writes]
                item = await saver.aget_tuple(stored)
                assert item.pending_writes in ([], whole)
                await asyncio.wait_for(saver.aput_writes(stored, writes, "task"), WAIT_SECONDS)
                assert (await saver.aget_tuple(stored)).pending_writes == whole
                if not cancelled[-1]:
                    break
    assert cancelled.count(True) >= 3
    assert not cancelled[-1]


@pytest.mark.parametrize("victim", range(4))
@pytest.mark.parametrize("delay", [0, 0.03, 0.07])
@both_savers
async def test_cancelling_one_of_a_batch(
    moto_server: MotoServer, prefix: str, cls: type, delay: float, victim: int
) -> None:
    """Whichever caller of a batch is cancelled, and whenever, the others' writes are stored."""
    with SlowProxy(moto_server.endpoint_url, latency_ms=50) as proxy:
        async with opened(cls, replace(moto_server, endpoint_url=proxy.url), prefix) as saver:
            stored = await saver.aput(config(), checkpoint(), {}, {})
            calls = [
                asyncio.create_task(saver.aput_writes(stored, [("x", number)], f"task {number}")) for number in range(4)
            ]
            await asyncio.sleep(delay)
            calls[victim].cancel()
            outcomes = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), WAIT_SECONDS)
            assert [outcome for number, outcome in enumerate(outcomes) if number != victim] == [None] * 3
            found = {value for _, _, value in (await saver.aget_tuple(stored)).pending_writes}
            assert found >= set(range(4)) - {victim}


# Serializing before the first await


@pytest.mark.parametrize("size", [1, 3_000, 200_000])
@both_savers
async def test_stored_is_what_was_given(moto_server: MotoServer, prefix: str, cls: type, size: int) -> None:
    """Values, metadata and writes are serialized before a call first waits: what changes afterwards is not stored."""
    with SlowProxy(moto_server.endpoint_url, latency_ms=10) as proxy:
        async with opened(cls, replace(moto_server, endpoint_url=proxy.url), prefix) as saver:
            parent = await saver.aput(config(), checkpoint({"k": ["before"]}, {"k": "1"}), {}, {"k": "1"})
            value, metadata, write = ["old"] * size, {"note": ["old"]}, ["old"] * size
            given = checkpoint({"k": value}, {"k": "2"})
            where = config("t", "", given["id"])
            put = asyncio.create_task(saver.aput(parent, given, metadata, {"k": "2"}))
            put_writes = asyncio.create_task(saver.aput_writes(where, [("x", write)], "task"))
            await asyncio.sleep(0)
            for changed in (value, metadata["note"], write):
                changed[:] = ["new"]
            given["channel_values"]["k"] = "replaced"
            await asyncio.gather(put, put_writes)
            item = await saver.aget_tuple(where)
    assert item.checkpoint["channel_values"] == {"k": ["old"] * size}
    assert item.metadata["note"] == ["old"]
    assert item.pending_writes == [("task", "x", ["old"] * size)]


# Group commit

TASKS = 20


@both_savers
async def test_group_commit_in_a_loop(moto_server: MotoServer, prefix: str, cls: type) -> None:
    """Twenty parallel tasks' writes for one checkpoint take at most three puts, and all are stored."""
    with SlowProxy(moto_server.endpoint_url, latency_ms=100) as proxy:
        async with opened(cls, replace(moto_server, endpoint_url=proxy.url), prefix) as saver:
            stored = await saver.aput(config(), checkpoint(), {}, {})
            proxy.reset()
            await asyncio.gather(
                *(saver.aput_writes(stored, [("x", number)], f"task {number}") for number in range(TASKS))
            )
            assert proxy.operations()["PutObject"] <= 3
            found = (await saver.aget_tuple(stored)).pending_writes
    assert sorted(value for _, _, value in found) == list(range(TASKS))


def test_group_commit_in_threads(moto_server: MotoServer, prefix: str) -> None:
    """Twenty threads' writes for one checkpoint take at most three puts, and each is stored when its call returns."""
    with (
        SlowProxy(moto_server.endpoint_url, latency_ms=100) as proxy,
        sync_client(replace(moto_server, endpoint_url=proxy.url)) as client,
        sync_client(moto_server) as direct,
        S3Saver(moto_server.bucket, prefix=prefix, client=client) as saver,
        S3Saver(moto_server.bucket, prefix=prefix, client=direct) as reader,
    ):
        stored = saver.put(config(), checkpoint(), {}, {})
        proxy.reset()

        def call(number: int) -> None:
            saver.put_writes(stored, [("x", number)], f"task {number}")
            assert (f"task {number}", "x", number) in writes_at(reader, stored)

        together(TASKS, call)
        assert proxy.operations()["PutObject"] <= 3
        assert sorted(value for _, _, value in writes_at(saver, stored)) == list(range(TASKS))


def test_group_commit_by_sync_methods_of_the_async_saver(moto_server: MotoServer, prefix: str) -> None:
    """The same from twenty threads on `AsyncS3Saver`."""
    with SlowProxy(moto_server.endpoint_url, latency_ms=100) as proxy:
        session = CountingSession(replace(moto_server, endpoint_url=proxy.url))
        with (
            AsyncS3Saver(moto_server.bucket, prefix=prefix, session=session) as saver,
            ThreadPoolExecutor(TASKS) as pool,
        ):
            stored = saver.put(config(), checkpoint(), {}, {})
            proxy.reset()
            list(pool.map(lambda number: saver.put_writes(stored, [("x", number)], f"task {number}"), range(TASKS)))
            assert proxy.operations()["PutObject"] <= 3
            assert sorted(value for _, _, value in writes_at(saver, stored)) == list(range(TASKS))
