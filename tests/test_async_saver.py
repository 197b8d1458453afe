"""What holds of savers and event loops: where a saver may be made and used, what closing and cancelling leave behind.

`asyncio.run` makes the loops here, as it does in users' programs: a client that it leaves open would be warned of,
and warnings are errors.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlencode

import pytest
from aiobotocore.session import AioSession
from kit import checkpoint, config
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from savers import Server, boto3_client, credentials
from slow_proxy import SlowProxy

from s3_saver import AsyncS3Saver, S3Saver
from s3_saver.clients import Connection
from s3_saver.errors import SaverClosedError

A = TypeVar("A")

# Made where no loop runs, and long before one does.
MADE_AT_IMPORT = AsyncS3Saver("checkpoints", session=AioSession(), prefix="made-at-import")

WAIT_SECONDS = 30
STRICT = JsonPlusSerializer(allowed_msgpack_modules=None)  # decodes no type that it is not told of
METADATA: Any = {"source": "loop", "step": 0, "parents": {}}


class CountingSession:
    """A session that counts the clients made from it, and those still open."""

    def __init__(self, server: Server) -> None:
        self._session = AioSession()
        self._session.set_credentials(server.access_key, server.secret_key)
        self.made = 0
        self.open = 0

    def get_config_variable(self, name: str) -> Any:
        return self._session.get_config_variable(name)

    def create_client(self, service: str, **arguments: Any) -> CountedClient:
        self.made += 1
        return CountedClient(self, self._session.create_client(service, **arguments))


class CountedClient:
    """Counts a session's client as open from its beginning to its end."""

    def __init__(self, session: CountingSession, client: Any) -> None:
        self._session = session
        self._client = client

    async def __aenter__(self) -> Any:
        self._session.open += 1
        return await self._client.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        await self._client.__aexit__(*raised)
        self._session.open -= 1


def saver_of(server: Server, session: CountingSession, prefix: str, url: str = "", **settings: Any) -> AsyncS3Saver:
    """A saver over clients that it makes itself, at the server's address or at the given one."""
    connection = Connection(server.region, url or server.endpoint_url)
    return AsyncS3Saver(server.bucket, prefix=prefix, session=session, _connection=connection, **settings)


@pytest.fixture
def session(seaweed: Server) -> Iterator[CountingSession]:
    """A session whose clients are all closed at the test's end."""
    made = CountingSession(seaweed)
    yield made
    gc.collect()
    assert made.open == 0


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """asyncio logs what goes wrong where nobody waits for it; nothing may."""
    yield
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.fixture
def saver(seaweed: Server, session: CountingSession, prefix: str) -> AsyncS3Saver:
    return saver_of(seaweed, session, prefix)


@pytest.fixture
def keys(seaweed: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", seaweed.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", seaweed.secret_key)


def connection_string(server: Server, prefix: str) -> str:
    query = urlencode({"endpoint_url": server.endpoint_url, "region_name": server.region})
    return f"s3://{server.bucket}/{prefix}?{query}"


@asynccontextmanager
async def client_of(server: Server) -> AsyncIterator[Any]:
    """A caller's own client."""
    async with AioSession().create_client("s3", **credentials(server)) as client:
        yield client


async def aput(saver: Any, thread_id: str, value: Any = "v") -> str:
    """Put a checkpoint with one channel; its id."""
    made = checkpoint({"a": value}, {"a": "1"})
    await saver.aput(config(thread_id), made, METADATA, {"a": "1"})
    return str(made["id"])


def put(saver: Any, thread_id: str, value: Any = "v") -> str:
    """Put a checkpoint with one channel; its id."""
    made = checkpoint({"a": value}, {"a": "1"})
    saver.put(config(thread_id), made, METADATA, {"a": "1"})
    return str(made["id"])


async def aids(saver: Any, thread_id: str) -> list[str]:
    return [item.checkpoint["id"] async for item in saver.alist(config(thread_id))]


def ids(saver: Any, thread_id: str) -> list[str]:
    return [item.checkpoint["id"] for item in saver.list(config(thread_id))]


async def within(coroutine: Coroutine[Any, Any, A]) -> A:
    return await asyncio.wait_for(coroutine, WAIT_SECONDS)


# Loops


def test_made_at_import_and_used_in_a_loop(seaweed: Server) -> None:
    """A saver made outside of any loop connects at its first request, and not before."""
    session = CountingSession(seaweed)
    saver = saver_of(seaweed, session, "made-outside")
    assert session.made == 0

    async def use(made: AsyncS3Saver) -> None:
        async with made:
            assert await made.aget_tuple(config("nobody")) is None

    asyncio.run(use(saver))
    assert session.made == 1
    assert session.open == 0
    assert "made-at-import" in repr(MADE_AT_IMPORT)


def test_made_and_never_used(seaweed: Server, session: CountingSession) -> None:
    """A saver that was never used needs no closing, and can be closed all the same."""
    AsyncS3Saver(seaweed.bucket, session=session)
    S3Saver(seaweed.bucket)
    gc.collect()
    AsyncS3Saver(seaweed.bucket, session=session).close()
    S3Saver(seaweed.bucket).close()
    asyncio.run(AsyncS3Saver(seaweed.bucket, session=session).aclose())
    asyncio.run(S3Saver(seaweed.bucket).aclose())
    assert session.made == 0


def test_successive_loops(saver: AsyncS3Saver, session: CountingSession) -> None:
    """One saver serves one loop after another without being closed; each loop's client ends with it."""
    made = [asyncio.run(aput(saver, "t")) for _ in range(4)]
    assert session.made == 4
    assert session.open == 0
    assert asyncio.run(aids(saver, "t")) == made[::-1]
    asyncio.run(saver.aclose())


def test_a_loop_that_failed_leaves_nothing_open(saver: AsyncS3Saver, session: CountingSession) -> None:
    """A loop's client is closed too when the loop's main task fails."""

    async def fail() -> None:
        await aput(saver, "t")
        raise LookupError

    with pytest.raises(LookupError):
        asyncio.run(fail())
    assert session.open == 0
    assert len(asyncio.run(aids(saver, "t"))) == 1


def test_two_loops_at_once(saver: AsyncS3Saver, session: CountingSession) -> None:
    """Two loops in two threads use one saver at once, each with a client of its own."""
    both_there = threading.Barrier(2, timeout=WAIT_SECONDS)

    async def use(thread_id: str) -> list[str]:
        await aput(saver, thread_id)
        await asyncio.to_thread(both_there.wait)
        made = await asyncio.gather(*(aput(saver, thread_id) for _ in range(5)))
        await asyncio.to_thread(both_there.wait)
        found = await aids(saver, thread_id)
        assert set(made) < set(found)
        return found

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda thread_id: asyncio.run(use(thread_id)), ("one", "two")))
    assert [len(each) for each in found] == [6, 6]
    assert session.made == 2
    saver.close()


async def test_one_client_for_all_calls_of_a_loop(saver: AsyncS3Saver, session: CountingSession) -> None:
    """Calls that come at once before there is a client wait for the same one."""
    async with saver:
        await asyncio.gather(*(aput(saver, f"t{number}") for number in range(10)))
        await asyncio.gather(*(aids(saver, f"t{number}") for number in range(10)))
        assert session.made == 1


async def test_a_connection_that_failed_is_tried_again(seaweed: Server, prefix: str) -> None:
    """A client that could not be made does not stand in the way of the next call."""
    session = CountingSession(seaweed)
    create, failures = session.create_client, [OSError("no client today")]

    def unsteady(service: str, **arguments: Any) -> Any:
        if failures:
            raise failures.pop()
        return create(service, **arguments)

    session.create_client = unsteady  # type: ignore[method-assign]
    async with saver_of(seaweed, session, prefix) as saver:
        with pytest.raises(Exception, match="no client today"):
            await aput(saver, "t")
        await aput(saver, "t")
    assert session.open == 0


# Sync methods of the async saver


def _use_in_sync(saver: Any, thread_id: str) -> None:
    """Every sync method, twice over."""
    for _ in range(2):
        id = put(saver, thread_id)
        there = config(thread_id, checkpoint_id=id)
        saver.put_writes(there, [("a", 1)], "task")
        found = saver.get_tuple(there)
        assert found is not None
        assert found.pending_writes == [("task", "a", 1)]
        assert saver.get(there) is not None
        assert ids(saver, thread_id)[0] == id
        assert saver.get_delta_channel_history(config=there, channels=["a"]) is not None
    saver.delete_thread(thread_id)
    assert saver.get_tuple(config(thread_id)) is None


def test_sync_methods_without_a_loop(saver: AsyncS3Saver, session: CountingSession) -> None:
    """Sync methods work where no loop runs, all over one client."""
    with saver:
        _use_in_sync(saver, "t")
        _use_in_sync(saver, "t")
        assert session.made == 1
    assert session.open == 0


def test_sync_methods_from_many_threads(saver: AsyncS3Saver, session: CountingSession) -> None:
    """Sync methods work from several threads at once, all over one client."""
    with saver, ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(_use_in_sync, saver, f"t{number}") for number in range(6)]:
            done.result(WAIT_SECONDS)
        assert session.made == 1


def test_sync_methods_after_a_loop_has_ended(saver: AsyncS3Saver) -> None:
    """What ran before in a loop that is over makes no difference to sync methods, nor they to the next loop."""
    with saver:
        id = asyncio.run(aput(saver, "t"))
        assert ids(saver, "t") == [id]
        assert asyncio.run(aids(saver, "t")) == [id]
        _use_in_sync(saver, "u")


async def test_sync_methods_beside_a_running_loop(saver: AsyncS3Saver) -> None:
    """From a thread beside the loop that uses the saver, sync methods work while async ones run."""
    async with saver:
        await within(
            asyncio.gather(
                asyncio.to_thread(_use_in_sync, saver, "sync"),
                *(aput(saver, f"async-{number}") for number in range(5)),
            )  # type: ignore[arg-type]
        )


async def test_sync_methods_on_the_loops_own_thread(saver: AsyncS3Saver) -> None:
    """On the thread of a loop that uses the saver, sync methods work: they have a loop of their own. No deadlock."""
    async with saver:
        id = await aput(saver, "t")
        with _watchdog():
            assert ids(saver, "t") == [id]
            _use_in_sync(saver, "u")


class _watchdog:
    """Ends the whole test run with all threads' stacks where the block takes too long: a deadlock has no other end."""

    def __enter__(self) -> None:
        import faulthandler

        faulthandler.dump_traceback_later(WAIT_SECONDS, exit=True)

    def __exit__(self, *_: object) -> None:
        import faulthandler

        faulthandler.cancel_dump_traceback_later()


# Injected clients


async def test_injected_client_stays_open(seaweed: Server, prefix: str) -> None:
    """Closing the saver leaves the caller's client as it was: open."""
    async with client_of(seaweed) as client:
        saver = AsyncS3Saver(seaweed.bucket, prefix=prefix, client=client)
        await aput(saver, "t")
        await saver.aclose()
        await saver.aclose()
        found = await client.list_objects_v2(Bucket=seaweed.bucket, Prefix=f"{prefix}/")
        assert found["KeyCount"] == 1
        with pytest.raises(SaverClosedError):
            await aput(saver, "t")


async def test_injected_client_serves_sync_methods_from_other_threads(seaweed: Server, prefix: str) -> None:
    """Sync methods run on the client's loop, from any thread but that loop's."""
    async with client_of(seaweed) as client, AsyncS3Saver(seaweed.bucket, prefix=prefix, client=client) as saver:
        await within(asyncio.to_thread(_use_in_sync, saver, "t"))


SYNC_CALLS: dict[str, Callable[[Any], Any]] = {
    "get_tuple": lambda saver: saver.get_tuple(config("t")),
    "list": lambda saver: list(saver.list(config("t"))),
    "put": lambda saver: put(saver, "t"),
    "put_writes": lambda saver: saver.put_writes(config("t", checkpoint_id="1"), [("a", 1)], "task"),
    "delete_thread": lambda saver: saver.delete_thread("t"),
    "get_delta_channel_history": lambda saver: saver.get_delta_channel_history(config=config("t"), channels=["a"]),
    "setup": lambda saver: saver.setup(),
}
ASYNC_CALLS: dict[str, Callable[[Any], Coroutine[Any, Any, Any]]] = {
    "aget_tuple": lambda saver: saver.aget_tuple(config("t")),
    "alist": lambda saver: aids(saver, "t"),
    "aput": lambda saver: aput(saver, "t"),
    "aput_writes": lambda saver: saver.aput_writes(config("t", checkpoint_id="1"), [("a", 1)], "task"),
    "adelete_thread": lambda saver: saver.adelete_thread("t"),
    "aget_delta_channel_history": lambda saver: saver.aget_delta_channel_history(config=config("t"), channels=["a"]),
    "asetup": lambda saver: saver.asetup(),
}


@pytest.mark.parametrize("name", SYNC_CALLS)
async def test_injected_client_refuses_its_own_loops_thread(seaweed: Server, prefix: str, name: str) -> None:
    """On the thread of the client's loop a sync method would wait for itself: it says so instead, at once."""
    async with client_of(seaweed) as client, AsyncS3Saver(seaweed.bucket, prefix=prefix, client=client) as saver:
        with _watchdog(), pytest.raises(asyncio.InvalidStateError, match="another thread"):
            SYNC_CALLS[name](saver)


def test_injected_client_whose_loop_has_ended(seaweed: Server, prefix: str) -> None:
    """Where the client's loop does not run any more, sync methods say what to use instead."""

    async def made() -> AsyncS3Saver:
        async with client_of(seaweed) as client:
            return AsyncS3Saver(seaweed.bucket, prefix=prefix, client=client)

    saver = asyncio.run(made())
    with _watchdog(), pytest.raises(RuntimeError, match="session="):
        saver.get_tuple(config("t"))
    saver.close()


def test_injected_boto3_client_stays_open(seaweed: Server, prefix: str) -> None:
    """Closing the sync saver, either way, leaves the caller's client open."""
    client = boto3_client(seaweed)
    with S3Saver(seaweed.bucket, prefix=prefix, client=client) as saver:
        put(saver, "t")
    asyncio.run(S3Saver(seaweed.bucket, prefix=prefix, client=client).aclose())
    assert client.list_objects_v2(Bucket=seaweed.bucket, Prefix=f"{prefix}/")["KeyCount"] == 1


async def test_client_and_session_exclude_each_other(seaweed: Server, session: CountingSession) -> None:
    """Who gives both is told so before anything is made."""
    async with client_of(seaweed) as client:
        with pytest.raises(ValueError, match="session and client"):
            AsyncS3Saver(seaweed.bucket, session=session, client=client)


# Ends


@pytest.fixture(params=["S3Saver", "AsyncS3Saver"])
def either(request: pytest.FixtureRequest, seaweed: Server, session: CountingSession, prefix: str, keys: None) -> Any:
    """Either saver, over clients of its own."""
    if request.param == "AsyncS3Saver":
        return saver_of(seaweed, session, prefix, serde=STRICT)
    return S3Saver(
        seaweed.bucket, prefix=prefix, serde=STRICT, _connection=Connection(seaweed.region, seaweed.endpoint_url)
    )


def test_closing_twice(either: Any) -> None:
    """Closing is idempotent in both colours and in any order."""
    put(either, "t")
    asyncio.run(aput(either, "t"))
    either.close()
    either.close()
    asyncio.run(either.aclose())
    either.close()


async def test_closing_in_a_loop(either: Any) -> None:
    """Either way of closing works inside a loop, one after the other."""
    await aput(either, "t")
    await within(either.aclose())
    with _watchdog():
        either.close()
    await within(either.aclose())


async def test_closing_the_sync_way_in_a_loop(either: Any) -> None:
    """`close` on a loop's own thread does not wait for that loop, even where both ways were used."""
    await aput(either, "t")
    with _watchdog():
        put(either, "t")
        either.close()
    await within(either.aclose())


async def test_use_after_closing(either: Any) -> None:
    """Every method of a closed saver says that it was closed, in both colours."""
    await aput(either, "t")
    await either.aclose()
    for name, call in SYNC_CALLS.items():
        with _watchdog(), pytest.raises(SaverClosedError, match="closed"):
            call(either)
            pytest.fail(f"{name} works")
    for name, acall in ASYNC_CALLS.items():
        with pytest.raises(SaverClosedError, match="closed"):
            await within(acall(either))
            pytest.fail(f"{name} works")


def test_with(either: Any) -> None:
    """`with` gives the saver itself and closes it, also behind an error."""

    def fail() -> None:
        with either as entered:
            assert entered is either
            put(either, "t")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    with pytest.raises(SaverClosedError):
        put(either, "t")


async def test_async_with(either: Any) -> None:
    """`async with` gives the saver itself and closes it, also behind an error."""

    async def fail() -> None:
        async with either as entered:
            assert entered is either
            await aput(either, "t")
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    with pytest.raises(SaverClosedError):
        await aput(either, "t")


def test_connection_string(seaweed: Server, prefix: str, keys: None) -> None:
    """A connection string makes a saver that is closed at the block's end."""
    with S3Saver.from_conn_string(connection_string(seaweed, prefix), inline_limit=10) as saver:
        id = put(saver, "t", "longer than ten bytes")
        assert ids(saver, "t") == [id]
    with pytest.raises(SaverClosedError):
        put(saver, "t")


async def test_async_connection_string(seaweed: Server, prefix: str, keys: None) -> None:
    """A connection string makes a saver that is closed at the block's end."""
    async with AsyncS3Saver.from_conn_string(connection_string(seaweed, prefix), inline_limit=10) as saver:
        id = await aput(saver, "t", "longer than ten bytes")
        assert await aids(saver, "t") == [id]
        assert await asyncio.to_thread(ids, saver, "t") == [id]
    with pytest.raises(SaverClosedError):
        await aput(saver, "t")


async def test_closing_waits_for_what_runs(seaweed: Server, prefix: str) -> None:
    """Writes that are on their way when the saver is closed are stored, and then it is closed."""
    with SlowProxy(seaweed.endpoint_url, latency_ms=100) as proxy:
        saver = saver_of(seaweed, CountingSession(seaweed), prefix, proxy.url)
        id = await aput(saver, "t")
        writing = asyncio.create_task(saver.aput_writes(config("t", checkpoint_id=id), [("a", 1)], "task"))
        await asyncio.sleep(0.03)
        await within(saver.aclose())
        await within(writing)
    with S3Saver(seaweed.bucket, prefix=prefix, client=boto3_client(seaweed)) as reader:
        found = reader.get_tuple(config("t"))
        assert found is not None
        assert found.pending_writes == [("task", "a", 1)]


# Clones


class Plain:
    """A type that a strict serializer decodes only where it is told to."""


async def test_clones_share_the_client(seaweed: Server, session: CountingSession, prefix: str) -> None:
    """A clone works over its original's client; closing or collecting it closes nothing."""
    async with saver_of(seaweed, session, prefix, serde=STRICT) as saver:
        await aput(saver, "t")
        clone = saver.with_allowlist([(__name__, "Plain")])
        assert clone is not saver
        assert len(await aids(clone, "t")) == 1
        await clone.aclose()
        clone.close()
        async with clone:
            pass
        assert len(await aids(clone, "t")) == 1
        del clone
        gc.collect()
        await aput(saver, "t")
        assert len(await aids(saver, "t")) == 2
        assert session.made == session.open == 1


def test_clones_of_the_sync_saver_share_the_client(seaweed: Server, prefix: str, keys: None) -> None:
    """A clone works over its original's client; closing or collecting it closes nothing."""
    connection = Connection(seaweed.region, seaweed.endpoint_url)
    with S3Saver(seaweed.bucket, prefix=prefix, serde=STRICT, _connection=connection) as saver:
        clone = saver.with_allowlist([(__name__, "Plain")])
        put(clone, "t")
        with clone:
            pass
        put(clone, "t")
        del clone
        gc.collect()
        assert len(ids(saver, "t")) == 2
        clone = saver.with_allowlist([(__name__, "Plain")])
    with pytest.raises(SaverClosedError):
        put(clone, "t")


def test_a_thousand_clones(either: Any) -> None:
    """LangGraph may make a clone for each graph: a thousand take little time, no thread and no connection."""
    put(either, "t")
    threads = threading.active_count()
    began = time.thread_time()
    clones = [either.with_allowlist([(__name__, f"Type{number}")]) for number in range(1000)]
    assert time.thread_time() - began < 5
    assert threading.active_count() == threads
    assert len(ids(clones[-1], "t")) == 1
    either.close()


# Cancellation


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


async def test_a_cancelled_caller_cancels_nobody_else(slow: Any) -> None:
    """Of six calls whose writes share batches, two are cancelled, the one that leads among them; four are stored."""
    proxy, make = slow
    async with make() as saver:
        id = await aput(saver, "t")
        there = config("t", checkpoint_id=id)
        proxy.latency_ms = 50
        calls = [
            asyncio.create_task(saver.aput_writes(there, [("a", number)], f"task {number}")) for number in range(6)
        ]
        await asyncio.sleep(0.02)
        calls[0].cancel()
        calls[3].cancel()
        outcomes = await within(asyncio.gather(*calls, return_exceptions=True))  # type: ignore[arg-type]
        assert [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes] == [
            number in (0, 3) for number in range(6)
        ]
        found = await saver.aget_tuple(there)
        assert found is not None
        stored = {write[0] for write in found.pending_writes or []}
        assert {"task 1", "task 2", "task 4", "task 5"} <= stored


def test_a_loop_that_is_cancelled_with_everything_in_it(slow: Any) -> None:
    """A loop that ends while puts and writes are on their way leaves whole ones or none, and a working saver."""
    proxy, make = slow
    saver = make()

    async def leave() -> str:
        id = await aput(saver, "t")
        proxy.latency_ms = 50
        there = config("t", checkpoint_id=id)
        tasks = [asyncio.create_task(saver.aput_writes(there, [("a", 1), ("b", 2)], f"{n}")) for n in range(5)]
        tasks.append(asyncio.create_task(aput(saver, "u")))  # type: ignore[arg-type]
        await asyncio.sleep(0.02)
        return id

    id = asyncio.run(leave())
    proxy.latency_ms = 5

    async def look() -> None:
        async with saver:
            found = await saver.aget_tuple(config("t"))
            assert found is not None
            tasks = [write[0] for write in found.pending_writes or []]
            assert all(tasks.count(task) == 2 for task in tasks)
            await saver.aput_writes(config("t", checkpoint_id=id), [("a", 1)], "next")

    asyncio.run(look())


async def test_cancelled_calls_of_the_sync_saver(seaweed: Server, prefix: str) -> None:
    """A cancelled call's thread goes on: its put is stored or not, whole, and the saver works on."""
    with SlowProxy(seaweed.endpoint_url, latency_ms=30) as proxy:
        saver = S3Saver(seaweed.bucket, prefix=prefix, client=_slow_client(seaweed, proxy.url), inline_limit=100)
        for number in range(6):
            made, where = checkpoint(VALUES, VERSIONS), config(f"t{number}")
            call = asyncio.create_task(saver.aput(where, made, METADATA, VERSIONS))
            await asyncio.sleep(number * 0.02)
            call.cancel()
            await asyncio.wait([call])
            found = await within(saver.aget_tuple(where))
            assert found is None or found.checkpoint["channel_values"] == VALUES
            await within(saver.aput(where, made, METADATA, VERSIONS))
        await saver.aclose()


def _slow_client(server: Server, url: str) -> Any:
    import boto3

    return boto3.client("s3", **(credentials(server) | {"endpoint_url": url}))


# What is stored is what was there at the call


@pytest.mark.parametrize("kind", ["S3Saver", "AsyncS3Saver"])
async def test_what_changes_after_the_first_tick_is_not_stored(
    seaweed: Server, session: CountingSession, prefix: str, kind: str
) -> None:
    """Values and writes are serialized before the call first waits: later changes to them are not stored."""
    saver: Any
    if kind == "S3Saver":
        saver = S3Saver(seaweed.bucket, prefix=prefix, client=boto3_client(seaweed))
    else:
        saver = saver_of(seaweed, session, prefix)
    async with saver:
        seen: set[str] = {"a"}
        written = ["first"]
        metadata: Any = {**METADATA, "writes": {"a": ["first"]}}
        made = checkpoint({"join": seen}, {"join": "1"})
        writing = dict(config("t", checkpoint_id=made["id"]))
        calls = [
            asyncio.create_task(saver.aput(config("t"), made, metadata, {"join": "1"})),
            asyncio.create_task(saver.aput_writes(writing, [("a", written)], "task")),
        ]
        await asyncio.sleep(0)
        seen.add("b")
        written.append("second")
        metadata["writes"]["a"].append("second")
        made["versions_seen"]["late"] = {"a": "1"}
        made["channel_versions"]["late"] = "1"
        await within(asyncio.gather(*calls))  # type: ignore[arg-type]
        found = await saver.aget_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"join": {"a"}}
        assert found.checkpoint["versions_seen"] == {"__input__": {}}
        assert found.checkpoint["channel_versions"] == {"join": "1"}
        assert found.metadata["writes"] == {"a": ["first"]}
        assert found.pending_writes == [("task", "a", ["first"])]
