"""The savers never hold up the event loop that a graph runs in.

A ticker beside the graph wakes every few milliseconds. Where it wakes late, the loop's thread was busy, or it waited
for something blocking, or the machine ran something else. The thread's own CPU time tells the first from the last;
what blocks without computing shows as a gap for each request. So the tests hold on a busy machine, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
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


class _Slow:
    """A server, seen through a proxy."""

    def __init__(self, server: Server, proxy: SlowProxy) -> None:
        self.endpoint_url = proxy.url
        self.access_key, self.secret_key = server.access_key, server.secret_key
        self.region, self.bucket = server.region, server.bucket


async def test_probe(seaweed, prefix):
    with SlowProxy(seaweed.endpoint_url, LATENCY_MS) as proxy:
        async with async_saver(_Slow(seaweed, proxy), prefix) as saver:
            for n in range(4):
                t = await _run(saver, f"t{n}")
                print("s3", len(t.gaps), round(t.longest * 1000), round(t.busiest * 1000), t.idle(0.018), len(proxy.requests))
                proxy.reset()
        saver = InMemorySaver()
        for n in range(4):
            t = await _run(saver, f"t{n}")
            print("mem", len(t.gaps), round(t.longest * 1000), round(t.busiest * 1000), t.idle(0.018))
