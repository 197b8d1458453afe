"""A store that is slow, or fails for a while, leaves no other trace in a graph's history than a fast one.

In a slow store a checkpoint is on its way while the next superstep runs. A saver that serialized it only then would
store what that superstep has made of it: a join's channel would hold names that were not in it yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import add
from typing import Annotated, Any, Literal, TypedDict
from urllib.parse import urlencode

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from observing import Ordinals
from savers import Server
from slow_proxy import SlowProxy

from s3_saver import AsyncS3Saver, S3Saver
from s3_saver.errors import StoreUnavailableError

LATENCY_MS = 20
NODE_SECONDS = 0.03
RUNS = 3
CONFIG: Any = {"configurable": {"thread_id": "t"}}

Durability = Literal["sync", "async", "exit"]
every_colour = pytest.mark.parametrize("colour", ["sync", "async"])


# A graph with parallel branches of different lengths, two joins and an interrupt


class State(TypedDict, total=False):
    log: Annotated[list[str], add]
    total: int
    answer: str


def build(saver: Any, *, asks: bool = False) -> Any:
    def node(name: str) -> Callable[[State], dict[str, Any]]:
        def run(state: State) -> dict[str, Any]:
            time.sleep(NODE_SECONDS)
            return {"log": [f"{name} after {len(state.get('log', []))}"]}

        return run

    def review(state: State) -> dict[str, Any]:
        answer = interrupt("go on?") if asks else "unasked"
        return {"answer": answer, "total": len(state["log"])}

    builder = StateGraph(State)
    for name in ("split", "a", "b", "b2", "c", "d", "d2", "e"):
        builder.add_node(name, node(name))
    builder.add_node("review", review)
    builder.add_edge(START, "split")
    for name in ("a", "b", "d"):
        builder.add_edge("split", name)
    builder.add_edge("b", "b2")
    builder.add_edge(["a", "b2"], "c")
    builder.add_edge("d", "d2")
    builder.add_edge(["c", "d2"], "e")
    builder.add_edge("e", "review")
    builder.add_edge("review", END)
    return builder.compile(checkpointer=saver)


def _inputs(*, asks: bool) -> list[Any]:
    return [{"log": ["start"]}, *([Command(resume="yes")] if asks else [])]


def _run(graph: Any, saver: Any, inputs: list[Any], durability: Durability) -> list[Any]:
    """Run the graph through and give all that it left, oldest first."""
    for given in inputs:
        graph.invoke(given, CONFIG, durability=durability)
    return _traces(list(saver.list(CONFIG)), list(graph.get_state_history(CONFIG)))


async def _arun(graph: Any, saver: Any, inputs: list[Any], durability: Durability) -> list[Any]:
    for given in inputs:
        await graph.ainvoke(given, CONFIG, durability=durability)
    stored = [item async for item in saver.alist(CONFIG)]
    return _traces(stored, [state async for state in graph.aget_state_history(CONFIG)])


def _traces(stored: list[Any], history: list[Any]) -> list[Any]:
    """Each checkpoint with what was seen, what is in its channels, joins' among them, and what was next."""
    plain = Ordinals().plain
    assert len(stored) == len(history)
    return [
        {
            "values": {name: plain(value) for name, value in sorted(item.checkpoint["channel_values"].items())},
            "seen": _ranks(item.checkpoint["versions_seen"]),
            "versions": _ranks({"": item.checkpoint["channel_versions"]}),
            "metadata": plain({key: item.metadata[key] for key in ("source", "step")}),
            "next": sorted(state.next),
            "state": plain(dict(sorted(state.values.items()))),
            "tasks": sorted((task.name, len(task.interrupts), plain(task.result)) for task in state.tasks),
        }
        for item, state in zip(stored, history, strict=True)
    ][::-1]


def _ranks(versions: dict[str, dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Versions without their random fractions, which tell forks apart: the whole number counts supersteps."""
    return {
        name: {channel: int(str(version).split(".")[0]) for channel, version in sorted(seen.items())}
        for name, seen in sorted(versions.items())
    }


# Savers on a slow store


@pytest.fixture
def proxy(seaweed: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowProxy]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", seaweed.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", seaweed.secret_key)
    with SlowProxy(seaweed.endpoint_url, LATENCY_MS) as made:
        yield made


@dataclass(frozen=True)
class Store:
    """Makes savers that reach the store through the proxy, and closes them."""

    bucket: str
    prefix: str
    proxy: SlowProxy

    def run(self, colour: str, durability: Durability, *, name: str = "", asks: bool = False) -> list[Any]:
        return self.drive(colour, durability, name, _inputs(asks=asks), asks=asks)

    def drive(self, colour: str, durability: Durability, name: str, inputs: list[Any], *, asks: bool) -> list[Any]:
        query = urlencode({"endpoint_url": self.proxy.url, "region_name": "us-east-1"})
        address = f"s3://{self.bucket}/{self.prefix}/{colour}-{durability}-{name}?{query}"
        if colour == "sync":
            with S3Saver.from_conn_string(address, inline_limit=64) as saver:
                return _run(build(saver, asks=asks), saver, inputs, durability)
        return asyncio.run(self._adrive(address, durability, inputs, asks=asks))

    async def _adrive(self, address: str, durability: Durability, inputs: list[Any], *, asks: bool) -> list[Any]:
        async with AsyncS3Saver.from_conn_string(address, inline_limit=64) as saver:
            return await _arun(build(saver, asks=asks), saver, inputs, durability)


@pytest.fixture
def slow(seaweed: Server, proxy: SlowProxy, prefix: str) -> Store:
    return Store(seaweed.bucket, prefix, proxy)


def expected(*, asks: bool = False, durability: Durability = "sync") -> list[Any]:
    """The same run on the memory saver, which stores at once."""
    saver = InMemorySaver()
    return _run(build(saver, asks=asks), saver, _inputs(asks=asks), durability)


def test_the_runs_have_joins_and_branches() -> None:
    """The traces that are compared show a join's channel half full, and steps with several nodes due."""
    traces = expected()
    joins = [value for trace in traces for name, value in trace["values"].items() if name.startswith("join:") and value]
    assert ["a"] in joins
    assert ["d2"] in joins
    assert ["a", "b", "d"] in [trace["next"] for trace in traces]
    assert ["b2", "d2"] in [trace["next"] for trace in traces]


@every_colour
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_history_on_a_slow_store(slow: Store, colour: str, durability: Durability) -> None:
    """Whenever the graph waits for its checkpoints, they are those of a store that is fast, run after run."""
    wanted = expected(durability=durability)
    for number in range(RUNS):
        assert slow.run(colour, durability, name=str(number)) == wanted


@every_colour
def test_interrupt_on_a_slow_store(slow: Store, colour: str) -> None:
    """A run that stops for an answer and goes on leaves the same traces with every durability."""
    assert slow.run(colour, "async", asks=True) == expected(asks=True)


# A store that fails for a while

FAULTS: dict[str, Callable[[SlowProxy, str, int], None]] = {
    "503": lambda proxy, op, skip: proxy.fail(op=op, status=503, skip=skip),
    "500 twice": lambda proxy, op, skip: proxy.fail(op=op, status=500, skip=skip, count=2),
    "429": lambda proxy, op, skip: proxy.fail(op=op, status=429, skip=skip),
    "lost answer": lambda proxy, op, skip: proxy.lose_answer(op=op, skip=skip),
}


@every_colour
@pytest.mark.parametrize("fault", FAULTS)
def test_passing_trouble_leaves_no_trace(slow: Store, proxy: SlowProxy, colour: str, fault: str) -> None:
    """Refusals, resets and lost answers to puts, reads and listings change nothing in a run's result and history."""
    proxy.latency_ms = 1
    for skip in (0, 3, 7):
        for op in ("PutObject", "ListObjectsV2", "GetObject"):
            FAULTS[fault](proxy, op, skip)
    assert slow.run(colour, "async", asks=True) == expected(asks=True)
    assert proxy.operations()["PutObject"] > 20


@every_colour
def test_many_lost_answers_leave_no_trace(slow: Store, proxy: SlowProxy, colour: str) -> None:
    """Every third answer to a put gets lost: each put is made again, finds itself there, and counts once."""
    proxy.latency_ms = 1
    for number in range(10):
        proxy.lose_answer(op="PutObject", skip=2 * (number + 1))
    assert slow.run(colour, "sync") == expected()


@every_colour
@pytest.mark.parametrize("durability", ["sync", "async"])
def test_lasting_trouble_names_the_operation(
    slow: Store, proxy: SlowProxy, colour: str, durability: Durability
) -> None:
    """A put that fails for good fails the run with an error that names key, operation and thread."""
    proxy.latency_ms = 1
    proxy.fail(op="PutObject", status=503, skip=6, count=1000)
    with pytest.raises(StoreUnavailableError, match=r"storing .*/threads/thread_id=t/.*SlowDown") as raised:
        slow.run(colour, durability)
    assert any("put" in note and "thread_id 't'" in note for note in raised.value.__notes__)


@every_colour
def test_a_run_goes_on_where_trouble_stopped_it(slow: Store, proxy: SlowProxy, colour: str) -> None:
    """After a failed run the thread is whole: the next one goes on from the last checkpoint and comes to the end."""
    proxy.latency_ms = 1
    proxy.fail(op="PutObject", status=403, skip=8, count=1000)
    with pytest.raises(Exception, match="AccessDenied"):
        slow.run(colour, "sync", name="x")
    proxy.reset()
    traces = slow.drive(colour, "sync", "x", [None], asks=False)
    assert traces[-1]["state"] == expected()[-1]["state"]
    assert traces[-1]["next"] == []
