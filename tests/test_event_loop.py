"""The savers never hold up the event loop that a graph runs in.

A ticker beside the graph wakes every few milliseconds. Where it wakes late, the loop's thread was busy, or it waited
for something blocking, or the machine ran something else. The thread's own CPU time tells the first from the last;
what blocks without computing shows as a gap for each request. So the tests hold on a busy machine, too.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from savers import Server, async_saver, sync_saver
from slow_proxy import SlowProxy

TICK_SECONDS = 0.002
GAP_SECONDS_MAX = 0.05
LATENCY_MS = 20
RUNS_MAX = 5

PARTS = ("alpha", "beta", "gamma")


# A graph with three parallel subgraphs, each of which keeps a large document and a long conversation


class Part(TypedDict):
    document: str
    messages: Annotated[list[AnyMessage], add_messages]
    step: int


class Whole(TypedDict, total=False):
    question: str
    alpha: str
    beta: str
    gamma: str


def _part(name: str) -> Any:
    def step(number: int) -> Callable[[Part], Awaitable[dict[str, Any]]]:
        async def run(state: Part) -> dict[str, Any]:
            await asyncio.sleep(0.03)
            said = [AIMessage(f"{name} {number} {line}: " + "said " * 100) for line in range(20)]
            return {"document": f"{name} {number} " * 60_000, "messages": said, "step": number}

        return run

    builder = StateGraph(Part)
    builder.add_node("first", step(1))
    builder.add_node("second", step(2))
    builder.add_node("third", step(3))
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", "third")
    builder.add_edge("third", END)
    return builder.compile(checkpointer=True)


def build(saver: Any) -> Any:
    builder = StateGraph(Whole)
    for name in PARTS:
        builder.add_node(name, _node(name, _part(name)))
        builder.add_edge(START, name)
        builder.add_edge(name, "join")
    builder.add_node("join", lambda state: {"question": state["question"] + "!"})
    builder.add_edge("join", END)
    return builder.compile(checkpointer=saver)


def _node(name: str, part: Any) -> Callable[[Whole], Awaitable[dict[str, str]]]:
    async def run(state: Whole) -> dict[str, str]:
        found = await part.ainvoke({"messages": [HumanMessage(state["question"])]})
        return {name: found["document"][:1000]}

    return run


# The ticker


@dataclass
class Ticker:
    """The times by which it woke late, and the CPU time that the loop's own thread used meanwhile."""

    gaps: list[tuple[float, float]] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK_SECONDS)
            self.gaps.append((time.perf_counter() - wall - TICK_SECONDS, time.thread_time() - cpu))

    @property
    def longest(self) -> float:
        return max(wall for wall, _ in self.gaps)

    @property
    def busiest(self) -> float:
        """The longest time that the loop's thread computed without a tick."""
        return max(min(wall, cpu) for wall, cpu in self.gaps)

    def idle(self, seconds: float) -> int:
        """How many gaps there were of so long, in which the loop's thread did nothing."""
        return sum(wall - cpu >= seconds for wall, cpu in self.gaps)


async def _beside(work: Awaitable[Any]) -> Ticker:
    ticker = Ticker()
    ticking = asyncio.create_task(ticker.run())
    await asyncio.sleep(0.01)
    try:
        await work
    finally:
        ticking.cancel()
        await asyncio.wait([ticking])
    return ticker


async def _run(saver: Any, thread_id: str) -> Ticker:
    config: Any = {"configurable": {"thread_id": thread_id}}
    graph = build(saver)

    async def work() -> None:
        found = await graph.ainvoke({"question": "why"}, config, durability="async")
        assert found["question"] == "why!"
        assert found["gamma"].startswith("gamma 3")

    return await _beside(work())


@dataclass(frozen=True)
class Slow:
    """A server as it is seen through a proxy."""

    endpoint_url: str
    access_key: str
    secret_key: str
    region: str
    bucket: str


@pytest.fixture
def proxy(seaweed: Server) -> Iterator[SlowProxy]:
    with SlowProxy(seaweed.endpoint_url, LATENCY_MS) as made:
        yield made


@pytest.fixture
def slow(seaweed: Server, proxy: SlowProxy) -> Slow:
    return Slow(proxy.url, seaweed.access_key, seaweed.secret_key, seaweed.region, seaweed.bucket)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """A full garbage collection among all the libraries of a test run takes 0.2 s, and no saver causes it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def _assert_free(
    run: Callable[[int], Awaitable[Ticker]], requests: Callable[[], int], *, runs: int = RUNS_MAX
) -> None:
    """At least one of a few runs kept the loop free: whatever blocks it for good does so in each."""
    seen = []
    for number in range(runs):
        before = requests()
        ticker = await run(number)
        # Whoever waits for an answer without letting go of the loop leaves one such gap for each request.
        waits = ticker.idle(LATENCY_MS / 1000) / max(1, requests() - before)
        if ticker.busiest < GAP_SECONDS_MAX and waits < 0.3:
            return
        seen.append((ticker.longest, ticker.busiest, waits))
    pytest.fail(f"the loop was held up in each run (longest gap, longest computing, blocking waits): {seen}")


@pytest.mark.usefixtures("no_collection")
async def test_graph_on_async_saver(slow: Slow, proxy: SlowProxy, prefix: str) -> None:
    """A graph with three parallel subgraphs and large states leaves the loop free beside it, at 20 ms a request."""
    async with async_saver(slow, prefix) as saver:
        await saver.aget_tuple({"configurable": {"thread_id": "connect"}})
        await _assert_free(lambda number: _run(saver, f"t{number}"), lambda: len(proxy.requests))


@pytest.mark.usefixtures("no_collection")
async def test_graph_on_sync_saver(slow: Slow, proxy: SlowProxy, prefix: str) -> None:
    """The sync saver's async methods wait in threads, and leave the loop as free."""
    async with sync_saver(slow, prefix) as saver:
        await saver.aget_tuple({"configurable": {"thread_id": "connect"}})
        await _assert_free(lambda number: _run(saver, f"t{number}"), lambda: len(proxy.requests))


@pytest.mark.usefixtures("no_collection")
async def test_reading_a_history(slow: Slow, proxy: SlowProxy, prefix: str) -> None:
    """Listing many large checkpoints fetches and decodes them beside the loop."""
    async with async_saver(slow, prefix) as saver:
        await _run(saver, "t")

        async def read(_: int) -> Ticker:
            async def work() -> None:
                found = [item async for item in saver.alist({"configurable": {"thread_id": "t"}})]
                assert len(found) == 4 + 5 * len(PARTS)

            return await _beside(work())

        await _assert_free(read, lambda: len(proxy.requests))


async def test_the_ticker_sees_what_blocks(slow: Slow, proxy: SlowProxy, prefix: str) -> None:
    """A saver that computed or waited on the loop would be found out: the tests above can fail."""

    class Computing(InMemorySaver):
        async def aput(self, *arguments: Any) -> Any:
            until = time.thread_time() + 0.1
            while time.thread_time() < until:
                pass
            return self.put(*arguments)

    class Waiting(InMemorySaver):
        puts = 0

        async def aput(self, *arguments: Any) -> Any:
            type(self).puts += 1
            time.sleep(LATENCY_MS / 1000 + 0.005)  # noqa: ASYNC251 - the fault that the test is about
            return self.put(*arguments)

    with pytest.raises(pytest.fail.Exception, match="in each run"):
        await _assert_free(lambda number: _run(Computing(), f"t{number}"), lambda: 0, runs=1)
    with pytest.raises(pytest.fail.Exception, match="in each run"):
        await _assert_free(lambda number: _run(Waiting(), f"t{number}"), lambda: Waiting.puts, runs=1)
    await _assert_free(lambda number: _run(InMemorySaver(), f"t{number}"), lambda: 0)
