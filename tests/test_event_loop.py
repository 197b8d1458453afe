"""A saver leaves the event loop free: a ticker beside a graph goes on while checkpoints are stored.

Where the ticker wakes late, the loop's thread computed, or waited for something that blocks, or the machine ran
something else. CPU time tells the first from the last, so that the tests hold on a busy machine too; and requests
tell which thread sends them. A run counts by its best attempt: what a saver does to the loop shows in each of them.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypedDict
from uuid import uuid4

import boto3
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import END, START, StateGraph
from savers import Server, async_saver, credentials
from slow_proxy import SlowProxy

from s3_saver import S3Saver

GAP_SECONDS_MAX = 0.05
TICK_SECONDS = 0.002
LATENCY_MS = 20
ATTEMPTS = 5
STATE_BYTES = 1_000_000
BRANCHES = 3
TURNS = 2

# Just under 1 MB, as one value, as values that stay inside their checkpoints, and as many small objects.
SHAPES: dict[str, Callable[[int], Any]] = {
    "one text": lambda turn: {"v0": text_of(turn, STATE_BYTES - 2_000)},
    "twenty texts": lambda turn: {f"v{number}": text_of(turn + number, 49_900) for number in range(20)},
    "many objects": lambda turn: {
        "v0": [{"id": number, "turn": turn, "text": text_of(number, 160)} for number in range(5_000)]
    },
}


def text_of(seed: int, size: int) -> str:
    """Text of `size` characters that compresses about as well as prose."""
    words = [f"{(seed + 1) * 7919 * (number + 1) % 100_003:x} " for number in range(size // 5 + 1)]
    return "".join(words).ljust(size, ".")[:size]


# A subgraph's state.
Branch = TypedDict("Branch", {"turn": int, **{f"v{number}": Any for number in range(20)}}, total=False)  # type: ignore[misc]


class Outer(TypedDict, total=False):
    """The state of the graph around the subgraphs, which share none of theirs with it."""

    asked: str


def build(saver: Any, values: list[dict[str, Any]]) -> Any:
    """A graph of parallel subgraphs; each turn of each of them changes its whole state. Nodes take no time."""

    async def work(state: Any) -> Any:
        return {"turn": state["turn"] + 1, **values[state["turn"]]}

    def branch() -> Any:
        inner = StateGraph(Branch)
        inner.add_node("work", work)
        inner.add_edge(START, "work")
        inner.add_conditional_edges("work", lambda state: END if state["turn"] == TURNS else "work", ["work", END])
        graph = inner.compile()

        async def call(state: Outer) -> Outer:
            await graph.ainvoke({"turn": 0})
            return {}

        return call

    outer = StateGraph(Outer)
    for number in range(BRANCHES):
        outer.add_node(f"branch{number}", branch())
        outer.add_edge(START, f"branch{number}")
    return outer.compile(checkpointer=saver)


@dataclass
class Ticker:
    """By how much it woke late, and how long the loop's own thread computed meanwhile, in seconds."""

    gaps: list[tuple[float, float]] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            wall, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(TICK_SECONDS)
            self.gaps.append((time.perf_counter() - wall - TICK_SECONDS, time.thread_time() - cpu))

    async def beside(self, work: Awaitable[Any]) -> None:
        """Tick until `work` is done."""
        ticking = asyncio.create_task(self.run())
        await asyncio.sleep(0)
        await work
        await asyncio.sleep(0)
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)

    def computing(self) -> float:
        """The longest time for which the loop's thread computed without a tick."""
        return max(min(wall, cpu) for wall, cpu in self.gaps)


async def best_gap(saver: Any, shape: str, attempts: int = ATTEMPTS) -> float:
    """The longest gap of the best attempt; the first that is good enough is the last."""
    values = [SHAPES[shape](turn) for turn in range(TURNS)]
    graph = build(saver, values)
    best = float("inf")
    for _ in range(attempts):
        where = {"configurable": {"thread_id": uuid4().hex}}
        ticker = Ticker()
        await ticker.beside(graph.ainvoke({"asked": "x"}, where))
        inner = [item async for item in saver.alist(where) if item.config["configurable"]["checkpoint_ns"]]
        whole = [item for item in inner if values[-1].items() <= item.checkpoint["channel_values"].items()]
        assert len(whole) >= BRANCHES
        best = min(best, ticker.computing())
        if best <= GAP_SECONDS_MAX:
            break
    return best


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """A full collection of garbage among all the libraries of a test run takes 0.2 s, and no saver causes it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def slow(seaweed: Server) -> Iterator[Any]:
    """A real server, 20 ms away."""
    with SlowProxy(seaweed.endpoint_url, latency_ms=LATENCY_MS) as proxy:
        yield SimpleNamespace(
            endpoint_url=proxy.url,
            access_key=seaweed.access_key,
            secret_key=seaweed.secret_key,
            region=seaweed.region,
            bucket=seaweed.bucket,
        )


every_shape = pytest.mark.parametrize("shape", SHAPES)


@every_shape
async def test_async_saver_leaves_the_loop_free(slow: Any, prefix: str, shape: str) -> None:
    """No gap above 50 ms beside a graph of parallel subgraphs with states of almost 1 MB, all of which are stored."""
    async with async_saver(slow, prefix) as saver:
        await saver.aget_tuple({"configurable": {"thread_id": "warm"}})
        assert await best_gap(saver, shape) <= GAP_SECONDS_MAX


@every_shape
async def test_sync_saver_leaves_the_loop_free(slow: Any, prefix: str, shape: str) -> None:
    """The same of the async methods of `S3Saver`, whose requests all go out from other threads."""
    client = boto3.client("s3", **credentials(slow))
    senders: set[int] = set()
    client.meta.events.register("before-send.s3", lambda **_: senders.add(threading.get_ident()))
    with closing(client), S3Saver(slow.bucket, prefix=prefix, client=client) as saver:
        await saver.aget_tuple({"configurable": {"thread_id": "warm"}})
        assert await best_gap(saver, shape) <= GAP_SECONDS_MAX
        assert senders
        assert threading.get_ident() not in senders


@every_shape
async def test_the_graph_itself_leaves_the_loop_free(shape: str) -> None:
    """With LangGraph's own memory saver the same graph has no such gap, so that a gap above is the saver's."""
    assert await best_gap(InMemorySaver(), shape) <= GAP_SECONDS_MAX


class Computing(JsonPlusSerializer):
    """A serializer that computes for longer than it may."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        if isinstance(obj, str) and len(obj) > STATE_BYTES // 2:
            until = time.thread_time() + 2 * GAP_SECONDS_MAX
            while time.thread_time() < until:
                pass
        return super().dumps_typed(obj)


async def test_a_busy_loop_is_seen(slow: Any, prefix: str) -> None:
    """A saver that computes on the loop for 100 ms does not pass."""
    async with async_saver(slow, prefix, serde=Computing()) as saver:
        assert await best_gap(saver, "one text", attempts=1) > GAP_SECONDS_MAX
