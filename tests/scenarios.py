"""Scripted graph runs whose every trace in the saver is compared with that in `InMemorySaver`.

    scenario = SCENARIOS["interrupt"]
    expected = scenario.run(scenario.build(InMemorySaver()), CONFIG, "sync")
    assert scenario.run(scenario.build(S3Saver(...)), CONFIG, "sync") == expected

`arun` does the same through the graph's async methods. A scenario is a graph builder and a drive over a `Face`
(see `observing.py`); it is deterministic, whatever runs in parallel.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from graphs import (
    FIXED,
    Graph,
    Saver,
    build_breakpoints,
    build_chat,
    build_delta_fan_out,
    build_deltas,
    build_failing,
    build_fan_out,
    build_functional,
    build_interrupt,
    build_join,
    build_loop,
    build_parallel_interrupts,
    build_remembering,
    build_subgraph,
    build_two_interrupts,
)
from langchain_core.messages import HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START
from langgraph.types import Command, StateUpdate
from observing import Drive, Durability, Face, Observation, finish

CONFIG: RunnableConfig = {"configurable": {"thread_id": "thread"}, "metadata": {"owner": "tests"}}
DURABILITIES: tuple[Durability, ...] = ("sync", "async", "exit")


@dataclass(frozen=True)
class Scenario:
    """A graph and what is done with it. `run` and `arun` return all that could be seen on the way."""

    name: str
    build: Callable[[Saver], Graph]
    drive: Drive

    def run(self, graph: Graph, config: RunnableConfig, durability: Durability) -> list[Observation]:
        face = Face(graph, config, durability, "sync")
        finish(self._whole(face))
        return face.observations

    async def arun(self, graph: Graph, config: RunnableConfig, durability: Durability) -> list[Observation]:
        face = Face(graph, config, durability, "async")
        await self._whole(face)
        return face.observations

    async def _whole(self, face: Face) -> None:
        await self.drive(face)
        await face.observe_all()


SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str, build: Callable[[Saver], Graph]) -> Callable[[Drive], Drive]:
    def register(drive: Drive) -> Drive:
        SCENARIOS[name] = Scenario(name, build, drive)
        return drive

    return register


# Linear loop


@scenario("loop", build_loop)
async def drive_loop(face: Face) -> None:
    await face.invoke({"log": ["start"], "fixed": FIXED})
    await face.invoke({"log": ["again"]})
    history = await face.history()
    face.note("filtered", await face.history(filter={"source": "loop"}))
    face.note("limited", await face.history(limit=2))
    face.note("before", await face.history(before=history[1].config))
    face.note("by id", await face.state(history[-1].config))


# Interrupts


@scenario("interrupt", build_interrupt)
async def drive_interrupt(face: Face) -> None:
    await face.invoke({"turn": 1, "fixed": FIXED})
    await face.invoke(None)  # nobody answered: it asks again
    await face.invoke(Command(resume="yes"))
    await face.invoke({"turn": 2})
    await face.invoke(Command(resume={"more": ["than", "a", "word"]}, update={"log": ["updated with the answer"]}))


@scenario("two interrupts in a node", build_two_interrupts)
async def drive_two_interrupts(face: Face) -> None:
    await face.invoke({"log": ["start"]})
    await face.invoke(Command(resume="one"))
    await face.invoke(Command(resume=["two", 2]))


@scenario("parallel interrupts", build_parallel_interrupts)
async def drive_parallel_interrupts(face: Face) -> None:
    await face.invoke({"log": ["start"]})
    ids = {asked.value: asked.id for asked in (await face.state()).interrupts}
    await face.invoke(Command(resume={ids["right?"]: "R"}))
    await face.invoke(Command(resume={ids["left?"]: "L", ids["middle?"]: "M"}))


@scenario("breakpoints", build_breakpoints)
async def drive_breakpoints(face: Face) -> None:
    await face.invoke({"log": ["start"]})
    await face.update({"log": ["edited at the breakpoint"]})
    await face.invoke(None)
    await face.invoke(None)


# Time travel


@scenario("time travel", build_loop)
async def drive_time_travel(face: Face) -> None:
    for number in range(3):
        await face.invoke({"log": [f"input {number}"], "fixed": FIXED})
    history = await face.history()
    middle = history[len(history) // 2]
    await face.invoke(None, middle.config)
    await face.invoke({"log": ["other input"]}, middle.config)
    fork = await face.update({"log": ["forked"], "turn": 7}, config=middle.config)
    await face.invoke(None, fork)
    again = await face.update({"log": ["forked again"]}, config=middle.config)
    await face.invoke({"log": ["goes on"]}, again)
    await face.invoke({"log": ["newest"]})


@scenario("time travel to an interrupt", build_interrupt)
async def drive_travel_to_interrupt(face: Face) -> None:
    await face.invoke({"turn": 1})
    asked = await face.state()
    await face.invoke(Command(resume="first answer"))
    await face.invoke(None, asked.config)
    await face.invoke(Command(resume="second answer"), asked.config)
    fork = await face.update({"turn": 5}, config=asked.config)
    await face.invoke(None, fork)
    await face.invoke(Command(resume="answer on the fork"))


# Updates of the state


@scenario("update state", build_loop)
async def drive_update_state(face: Face) -> None:
    await face.update({"log": ["on a fresh thread"], "turn": 1, "fixed": FIXED}, as_node="work")
    await face.invoke(None)
    await face.update({"log": ["as rest"]}, as_node="rest")
    await face.update({"turn": 4}, as_node="work")
    await face.invoke(None)
    await face.update(None, as_node=END)
    await face.update(None, as_node="__copy__")
    await face.update({"log": ["as input"]}, as_node=START)
    await face.invoke(None)


@scenario("bulk update", build_loop)
async def drive_bulk_update(face: Face) -> None:
    await face.bulk_update(
        [
            [StateUpdate({"log": ["bulk input"], "fixed": FIXED}, "__input__")],
            [StateUpdate({"turn": 1}, "work")],
            [StateUpdate({"log": ["bulk 1"], "turn": 2}, "work"), StateUpdate({"log": ["bulk 2"]}, "rest")],
            [StateUpdate({"log": ["bulk 3"]}, "work")],
        ]
    )
    await face.invoke(None)


# Subgraphs


@scenario("subgraph with interrupt", build_subgraph)
async def drive_subgraph(face: Face) -> None:
    await face.invoke({"log": ["start"], "fixed": FIXED})
    waiting = (await face.state()).tasks[0].state
    assert waiting is not None
    inner: Any = getattr(waiting, "config", waiting)
    await face.update({"log": ["edited inside"]}, config=inner)
    await face.invoke(Command(resume="yes"))
    await face.invoke({"log": ["once more"]})
    await face.invoke(Command(resume="no"))
    history = await face.history()
    asked = next(found for found in history if found.next == ("child",))
    await face.invoke(None, asked.config)


@scenario("subgraph with a memory of its own", build_remembering)
async def drive_remembering(face: Face) -> None:
    await face.invoke({"log": []})
    await face.invoke({"log": []})


# Fan-out and join


@scenario("fan-out of 20", build_fan_out)
async def drive_fan_out(face: Face) -> None:
    result = await face.invoke({"log": ["start"]})
    assert result["log"] == ["start", *(f"item {item}" for item in range(20)), "last"]
    await face.invoke({"log": ["again"]})


@scenario("updates that send", build_fan_out)
async def drive_updates_that_send(face: Face) -> None:
    await face.update({"turn": 3, "log": ["as plan"]}, as_node="plan")
    planned = await face.state()
    await face.invoke(None)
    await face.update({"turn": 2}, config=planned.config, as_node="plan")
    await face.invoke(None)


@scenario("join of branches", build_join)
async def drive_join(face: Face) -> None:
    result = await face.invoke({"log": [], "fixed": FIXED})
    assert result["log"][-2:] == ["join", "end"]
    history = await face.history()
    await face.invoke(None, history[len(history) // 2].config)
    await face.invoke({"log": ["again"]})


# Delta channels


@scenario("delta channels", build_deltas)
async def drive_deltas(face: Face) -> None:
    # Short: reading a delta channel's history takes time that grows with the square of its length.
    for number in range(2):
        await face.invoke({"often": [f"input {number}"], "seldom": [f"input {number}"]})
    history = await face.history()
    past = history[len(history) // 2].config
    fork = await face.update({"often": ["forked"], "turn": 5}, config=past)
    await face.invoke(None, fork)
    await face.invoke({"seldom": ["after the fork"]})
    await face.invoke(None, past)
    other = await face.update({"often": ["forked otherwise"]}, config=past)
    await face.update({"seldom": ["again"], "turn": 7}, config=past)
    await face.invoke(None, other)


@scenario("delta channel of a fan-out", build_delta_fan_out)
async def drive_delta_fan_out(face: Face) -> None:
    result = await face.invoke({"seldom": ["start"]})
    assert result["seldom"] == ["start", *(f"item {item}" for item in range(12))]
    await face.invoke({"seldom": ["again"]})


# Errors


@scenario("failing node", build_failing)
async def drive_failing(face: Face) -> None:
    # One task at a time, in the order of their names: the steady ones have ended when the flaky one fails.
    await face.invoke({"log": ["start"]}, max_concurrency=1)
    await face.invoke(None, max_concurrency=1)
    await face.invoke(None, max_concurrency=1)
    assert sorted(face.executions.names) == ["a_steady", "b_steady", "flaky", "flaky", "flaky"]


# Messages and tools


@scenario("chat with tools", build_chat)
async def drive_chat(face: Face) -> None:
    await face.invoke({"messages": [HumanMessage("Grüße", id="h1")]})
    await face.invoke({"messages": [HumanMessage([{"type": "text", "text": "parts"}], id="h2")]})
    await face.update({"messages": [RemoveMessage(id="h1")]})
    await face.invoke({"messages": [HumanMessage("third", id="h3")]})


# The functional API


@scenario("functional", build_functional)
async def drive_functional(face: Face) -> None:
    for number in (3, 4):
        await face.invoke(number)
        await face.invoke(Command(resume="yes"))
