"""Graphs on a store that is slow, answers late, refuses, or drops connections.

The clients are those that the savers make themselves, so their own retries are what is tested.
"""

import asyncio
import operator
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any, TypedDict
from urllib.parse import urlencode

import pytest
from graphs import Graph, Saver
from kit import checkpoint, config, id_of
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from observing import Durability, Face, Observation
from scenarios import CONFIG, SCENARIOS, Scenario
from slow_proxy import SlowProxy

from s3_saver import AsyncS3Saver, S3Saver, StoreAccessError
from s3_saver.embedded import EmbeddedS3

LATENCY_MS = 20
NODE_SECONDS = 0.04
WAIT_SECONDS = 60
ALWAYS = 1_000_000
RUNS = 2

both_savers = pytest.mark.parametrize("colour", ["sync", "async"])
while_running = pytest.mark.parametrize("durability", ["sync", "async"])


@pytest.fixture
def proxy(seaweed: EmbeddedS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowProxy]:
    """A way to the server that can be made to fail, and the credentials in the environment."""
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    with SlowProxy(seaweed.endpoint_url, latency_ms=0) as proxy:
        yield proxy


@asynccontextmanager
async def opened(colour: str, proxy: SlowProxy, server: EmbeddedS3, prefix: str) -> AsyncIterator[Any]:
    """Either saver, made from a connection string that leads through the proxy."""
    query = urlencode({"endpoint_url": proxy.url, "region_name": server.region})
    string = f"s3://{server.bucket}/{prefix}?{query}"
    if colour == "sync":
        with noting(S3Saver).from_conn_string(string) as saver:
            yield saver
    else:
        async with noting(AsyncS3Saver).from_conn_string(string) as saver:
            yield saver


async def observed(colour: str, scenario: Scenario, saver: Any, durability: Durability) -> list[Observation]:
    """Run the scenario: in threads on the sync saver, in this event loop on the async one."""
    graph = scenario.build(saver)
    if colour == "async":
        return await scenario.arun(graph, CONFIG, durability)
    return await asyncio.to_thread(scenario.run, graph, CONFIG, durability)


# A join that is slower than the store


class Begun:
    """The steps whose checkpoints a saver has been asked to put."""

    def __init__(self) -> None:
        self._steps: set[int] = set()
        self._changed = threading.Condition()

    def add(self, step: int) -> None:
        with self._changed:
            self._steps.add(step)
            self._changed.notify_all()

    def wait(self, step: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: step in self._steps, WAIT_SECONDS)


def noting(cls: Any) -> Any:
    """The class of savers, with a `begun` that tells which puts were called."""

    class Noting(cls):  # type: ignore[misc]
        def __init__(self, *args: Any, **keywords: Any) -> None:
            super().__init__(*args, **keywords)
            self.begun = Begun()

        def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            self.begun.add(metadata.get("step"))
            return super().put(config, checkpoint, metadata, new_versions)

        async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            self.begun.add(metadata.get("step"))
            return await super().aput(config, checkpoint, metadata, new_versions)

    return Noting


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def build_slow_join(saver: Any) -> Graph:
    """Branches of unequal length that meet, and part again; every node is slower than a request."""

    def slowly(name: str) -> Callable[[Log, RunnableConfig], Log]:
        # LangGraph hands over the join's own set and starts a put only when the last one has ended. So no saver could
        # keep the set as it was, if steps ended before their predecessors' puts began.
        def node(state: Log, config: RunnableConfig) -> Log:
            saver.begun.wait(config["metadata"]["langgraph_step"] - 1)
            time.sleep(NODE_SECONDS)
            return {"log": [name]}

        return node

    builder = StateGraph(Log)
    for name in ("a", "b", "b2", "c", "d", "e"):
        builder.add_node(name, slowly(name))
    for source, target in [(START, "a"), (START, "b"), ("b", "b2"), ("c", "d"), ("c", "e")]:
        builder.add_edge(source, target)
    builder.add_edge(["a", "b2"], "c")  # filled in two steps in a row
    return builder.compile(checkpointer=saver)


async def drive_slow_join(face: Face) -> None:
    result = await face.invoke({"log": ["start"]})
    assert result["log"] == ["start", "a", "b", "b2", "c", "d", "e"]
    await face.invoke({"log": ["again"]})


SLOW_JOIN = Scenario("slow join", build_slow_join, drive_slow_join)


@while_running
@both_savers
async def test_m01_join_under_latency(
    seaweed: EmbeddedS3, proxy: SlowProxy, prefix: str, colour: str, durability: Durability
) -> None:
    """A join fires once and its half-filled states are kept as they were, though puts are in flight meanwhile."""
    proxy.latency_ms = LATENCY_MS
    expected = await observed(colour, SLOW_JOIN, noting(InMemorySaver)(), "sync")
    for number in range(RUNS):
        async with opened(colour, proxy, seaweed, f"{prefix}/{number}") as saver:
            assert await observed(colour, SLOW_JOIN, saver, durability) == expected


# Failures that pass


@pytest.mark.parametrize(("name", "skip"), [("interrupt", 0), ("parallel interrupts", 2)])
@both_savers
async def test_every_kind_of_request_fails_once(
    seaweed: EmbeddedS3, proxy: SlowProxy, prefix: str, colour: str, name: str, skip: int
) -> None:
    """A run does not notice that the store asked to slow down, whatever it was asked."""
    scenario = SCENARIOS[name]
    expected = await observed(colour, scenario, InMemorySaver(), "async")
    operations = ("GetObject", "PutObject", "ListObjectsV2")
    for op in operations:
        proxy.fail(op, status=503, skip=skip)
    async with opened(colour, proxy, seaweed, prefix) as saver:
        assert await observed(colour, scenario, saver, "async") == expected
        assert [item async for item in reread(colour, saver)]
    assert all(proxy.operations()[op] > skip for op in operations)


async def reread(colour: str, saver: Any) -> AsyncIterator[Any]:
    """All of the thread by a saver's own methods, the newest checkpoint first and by its id."""
    newest = await saver.aget_tuple(CONFIG)
    yield await saver.aget_tuple(newest.config)
    async for item in saver.alist(CONFIG):
        yield item


@while_running
@both_savers
async def test_answers_get_lost(
    seaweed: EmbeddedS3, proxy: SlowProxy, prefix: str, colour: str, durability: Durability
) -> None:
    """What the store did, and could not say so, is neither done twice nor taken for another's."""
    scenario = SCENARIOS["interrupt"]
    expected = await observed(colour, scenario, InMemorySaver(), durability)
    for skip in (0, 2, 3, 5):
        proxy.lose_answer("PutObject", skip=skip)
    proxy.lose_answer("GetObject")
    proxy.lose_answer("ListObjectsV2")
    async with opened(colour, proxy, seaweed, prefix) as saver:
        assert await observed(colour, scenario, saver, durability) == expected
        assert [item async for item in reread(colour, saver)]
    assert proxy.operations()["PutObject"] > 14
    assert min(proxy.operations()[op] for op in ("GetObject", "ListObjectsV2")) > 0


@both_savers
async def test_idle_connections_are_dropped(seaweed: EmbeddedS3, proxy: SlowProxy, prefix: str, colour: str) -> None:
    """Connections that a server or a balancer closed between two calls cost no error."""
    async with opened(colour, proxy, seaweed, prefix) as saver:
        for number in range(3):
            stored = await saver.aput(config(), checkpoint({"k": number}, {"k": "1"}, id=str(number)), {}, {"k": "1"})
            await drop_connections(proxy)
            await saver.aput_writes(stored, [("x", number)], "T")
            await drop_connections(proxy)
        items = [item async for item in saver.alist(config())]
    assert [(id_of(item), item.checkpoint["channel_values"], item.pending_writes) for item in items] == [
        (str(number), {"k": number}, [("T", "x", number)]) for number in (2, 1, 0)
    ]


async def drop_connections(proxy: SlowProxy) -> None:
    """Close every connection, and return when all are closed."""
    assert proxy._connections
    deadline = time.monotonic() + WAIT_SECONDS
    while proxy._connections:
        for connection in list(proxy._connections):
            proxy._loop.call_soon_threadsafe(connection.cancel)
        await asyncio.sleep(0.01)
        assert time.monotonic() < deadline


# Failures that stay


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@both_savers
async def test_puts_are_refused_for_good(
    seaweed: EmbeddedS3, proxy: SlowProxy, prefix: str, colour: str, durability: Durability
) -> None:
    """The run raises an error that says what was being stored, and goes on from what is there when all is well."""
    settings: Any = {"durability": durability}
    async with opened(colour, proxy, seaweed, prefix) as saver:
        graph = build_quick(saver)
        call = graph.ainvoke if colour == "async" else partial(asyncio.to_thread, graph.invoke)
        await call({"log": ["first"]}, CONFIG, **settings)
        before = [id_of(item) async for item in saver.alist(CONFIG)]
        proxy.fail("PutObject", 403, skip=0 if durability == "exit" else 2, count=ALWAYS)
        with pytest.raises(StoreAccessError) as raised:
            await call({"log": ["second"]}, CONFIG, **settings)
        key = rf"storing {prefix}/threads/thread_id=thread/\S+ in bucket '{seaweed.bucket}'"
        assert raised.match(key)
        assert raised.match("AccessDenied")
        assert any("thread_id 'thread'" in note for note in raised.value.__notes__)
        proxy.reset()
        after = [id_of(item) async for item in saver.alist(CONFIG)]
        assert after[len(after) - len(before) :] == before
        result = await call({"log": ["third"]}, CONFIG, **settings)
    assert result["log"][:4] == ["first", "a", "b", "c"]
    assert result["log"][-4:] == ["third", "a", "b", "c"]


def build_quick(saver: Saver) -> Graph:
    def says(name: str) -> Callable[[Log], Log]:
        return lambda state: {"log": [name]}

    builder = StateGraph(Log)
    builder.add_sequence([(name, says(name)) for name in ("a", "b", "c")])
    builder.add_edge(START, "a")
    return builder.compile(checkpointer=saver)
