"""The graphs of the scenarios, one builder each. Nodes are plain functions that answer alike in every run."""

import operator
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.runtime import Runtime
from langgraph.types import Send, interrupt
from observing import Executions

Saver = BaseCheckpointSaver[Any]
Graph = Pregel[Any, Any, Any, Any]


class Log(TypedDict, total=False):
    """The state of most graphs: a list that grows, a counter, and a value that never changes."""

    log: Annotated[list[str], operator.add]
    turn: int
    fixed: dict[str, Any]


FIXED: dict[str, Any] = {"name": "Zoë", "bytes": b"\x00\xff", "deep": [{"a": None}, 1.5]}


def says(name: str) -> Callable[[Log], Log]:
    """A node that appends its name."""

    def node(state: Log) -> Log:
        return {"log": [name]}

    return node


# Linear loop


def build_loop(saver: Saver) -> Graph:
    def work(state: Log) -> Log:
        turn = state.get("turn", 0) + 1
        return {"log": [f"turn {turn}"], "turn": turn}

    builder = StateGraph(Log)
    builder.add_node("work", work)
    builder.add_node("rest", says("rest"))
    builder.add_edge(START, "work")
    builder.add_edge("work", "rest")
    builder.add_conditional_edges("rest", lambda state: END if state["turn"] % 3 == 0 else "work", ["work", END])
    return builder.compile(checkpointer=saver)


# Interrupts


def build_interrupt(saver: Saver) -> Graph:
    def ask(state: Log, runtime: Runtime[Executions]) -> Log:
        # Another run of the same task writes something else: the saver must keep what it was given first.
        runtime.context.names.append("ask")
        answer = interrupt({"question": "go on?", "turn": state["turn"]})
        return {"log": [f"answered {answer} in run {runtime.context.count('ask')}"]}

    builder = StateGraph(Log, Executions)
    builder.add_node("before", says("before"))
    builder.add_node("ask", ask)
    builder.add_node("after", says("after"))
    builder.add_edge(START, "before")
    builder.add_edge("before", "ask")
    builder.add_edge("ask", "after")
    return builder.compile(checkpointer=saver)


def build_two_interrupts(saver: Saver) -> Graph:
    def ask(state: Log, runtime: Runtime[Executions]) -> Log:
        runtime.context.names.append("ask")
        first = interrupt("first?")
        second = interrupt(f"second, after {first}?")
        return {"log": [f"{first} and {second}"]}

    builder = StateGraph(Log, Executions)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    return builder.compile(checkpointer=saver)


def build_parallel_interrupts(saver: Saver) -> Graph:
    def asker(name: str) -> Callable[[Log], Log]:
        def node(state: Log) -> Log:
            return {"log": [f"{name}: {interrupt(f'{name}?')}"]}

        return node

    builder = StateGraph(Log)
    for name in ("left", "middle", "right"):
        builder.add_node(name, asker(name))
        builder.add_edge(START, name)
    builder.add_node("silent", says("silent"))
    builder.add_edge(START, "silent")
    builder.add_node("last", says("last"))
    builder.add_edge(["left", "middle", "right", "silent"], "last")
    return builder.compile(checkpointer=saver)


def build_breakpoints(saver: Saver) -> Graph:
    builder = StateGraph(Log)
    builder.add_sequence([("first", says("first")), ("second", says("second")), ("third", says("third"))])
    builder.add_edge(START, "first")
    return builder.compile(checkpointer=saver, interrupt_before=["second"], interrupt_after=["second"])


# Subgraphs


def build_subgraph(saver: Saver) -> Graph:
    def ask(state: Log) -> Log:
        return {"log": [f"child heard {interrupt('child?')}"]}

    child = StateGraph(Log)
    child.add_sequence([("prepare", says("prepare")), ("ask", ask), ("conclude", says("conclude"))])
    child.add_edge(START, "prepare")
    builder = StateGraph(Log)
    builder.add_node("before", says("before"))
    builder.add_node("child", child.compile())
    builder.add_node("after", says("after"))
    builder.add_edge(START, "before")
    builder.add_edge("before", "child")
    builder.add_edge("child", "after")
    return builder.compile(checkpointer=saver)


def build_remembering(saver: Saver) -> Graph:
    def count(state: dict[str, Any]) -> dict[str, Any]:
        return {"memory": [f"call {len(state.get('memory', [])) + 1}"], "log": [f"memory {state.get('memory', [])}"]}

    class Memory(Log, total=False):
        memory: Annotated[list[str], operator.add]

    child = StateGraph(Memory)
    child.add_node("count", count)
    child.add_node("rest", says("child rests"))
    child.add_edge(START, "count")
    child.add_edge("count", "rest")
    builder = StateGraph(Log)
    builder.add_node("child", child.compile(checkpointer=True))
    builder.add_node("next", lambda state: {"turn": state.get("turn", 0) + 1})
    builder.add_edge(START, "child")
    builder.add_edge("child", "next")
    builder.add_conditional_edges("next", lambda state: END if state["turn"] % 2 == 0 else "child", ["child", END])
    return builder.compile(checkpointer=saver)


# Fan-out and join


def build_fan_out(saver: Saver) -> Graph:
    def worker(state: dict[str, Any]) -> Log:
        return {"log": [f"item {state['item']}"]}

    builder = StateGraph(Log)
    builder.add_node("plan", lambda state: {"turn": 20})
    builder.add_node("worker", worker)
    builder.add_node("last", says("last"))
    builder.add_edge(START, "plan")
    builder.add_conditional_edges(
        "plan", lambda state: [Send("worker", {"item": item}) for item in range(state["turn"])], ["worker"]
    )
    builder.add_edge("worker", "last")
    return builder.compile(checkpointer=saver)


def build_join(saver: Saver) -> Graph:
    def slowly(name: str) -> Callable[[Log], Log]:
        # The join's channel hands the saver its own set. With durability "async" no saver could keep apart what is
        # in it now from what the next step adds, if that step ended before the put had begun.
        def node(state: Log) -> Log:
            time.sleep(0.06)
            return {"log": [name]}

        return node

    builder = StateGraph(Log)
    for name in ("a", "b1", "c1", "c2", "end"):
        builder.add_node(name, says(name))
    for name in ("b2", "b3", "join"):
        builder.add_node(name, slowly(name))
    for source, target in [(START, "a"), (START, "b1"), (START, "c1"), ("b1", "b2"), ("b2", "b3"), ("c1", "c2")]:
        builder.add_edge(source, target)
    builder.add_edge(["a", "b3", "c2"], "join")
    builder.add_edge("join", "end")
    return builder.compile(checkpointer=saver)


# Delta channels


def extend(state: list[str], batches: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for batch in batches for item in batch)]


class Deltas(TypedDict, total=False):
    often: Annotated[list[str], DeltaChannel(extend, list, snapshot_frequency=3)]
    seldom: Annotated[list[str], DeltaChannel(extend, list, snapshot_frequency=50)]
    turn: int


def build_deltas(saver: Saver) -> Graph:
    def work(state: Deltas) -> Deltas:
        turn = state.get("turn", 0) + 1
        return {"often": [f"o{turn}"], "turn": turn} if turn % 4 else {"seldom": [f"s{turn}"], "turn": turn}

    builder = StateGraph(Deltas)
    builder.add_node("work", work)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", lambda state: END if state["turn"] % 5 == 0 else "work", ["work", END])
    return builder.compile(checkpointer=saver)


def build_delta_fan_out(saver: Saver) -> Graph:
    def worker(state: dict[str, Any]) -> Deltas:
        return {"seldom": [f"item {state['item']}"]}

    builder = StateGraph(Deltas)
    builder.add_node("plan", lambda state: {"turn": 12})
    builder.add_node("worker", worker)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", lambda state: [Send("worker", {"item": i}) for i in range(12)], ["worker"])
    return builder.compile(checkpointer=saver)


# Errors


def build_failing(saver: Saver) -> Graph:
    def steady(name: str) -> Callable[[Log, Runtime[Executions]], Log]:
        def node(state: Log, runtime: Runtime[Executions]) -> Log:
            runtime.context.names.append(name)
            return {"log": [name]}

        return node

    def flaky(state: Log, runtime: Runtime[Executions]) -> Log:
        runtime.context.names.append("flaky")
        if runtime.context.count("flaky") < 3:
            raise ArithmeticError(f"failure {runtime.context.count('flaky')}")
        return {"log": ["flaky"]}

    builder = StateGraph(Log, Executions)
    builder.add_node("a_steady", steady("a_steady"))
    builder.add_node("b_steady", steady("b_steady"))
    builder.add_node("c_flaky", flaky)
    builder.add_node("last", says("last"))
    for name in ("a_steady", "b_steady", "c_flaky"):
        builder.add_edge(START, name)
    builder.add_edge(["a_steady", "b_steady", "c_flaky"], "last")
    return builder.compile(checkpointer=saver)


# Messages and tools


@tool
def add(left: int, right: int) -> int:
    """The sum."""
    return left + right


@tool
def shout(text: str) -> str:
    """The text in capitals."""
    return text.upper()


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


def build_chat(saver: Saver) -> Graph:
    def model(state: Chat) -> Chat:
        last = state["messages"][-1]
        if not isinstance(last, HumanMessage):
            return {"messages": [AIMessage(f"It is {last.content}.", id=f"{last.id}-answer")]}
        calls = [
            ToolCall(name="add", args={"left": 2, "right": len(str(last.content))}, id=f"{last.id}-add"),
            ToolCall(name="shout", args={"text": last.content}, id=f"{last.id}-shout"),
        ]
        return {"messages": [AIMessage("I compute.", tool_calls=calls, id=f"{last.id}-calls")]}

    tool_node = ToolNode([add, shout])

    def tools(state: Chat, config: RunnableConfig) -> Chat:
        # A message without an id is given one in place, perhaps while a saver stores it.
        results: list[ToolMessage] = tool_node.invoke(state, config)["messages"]
        return {"messages": [result.model_copy(update={"id": f"{result.tool_call_id}-result"}) for result in results]}

    builder = StateGraph(Chat)
    builder.add_node("model", model)
    builder.add_node("tools", tools)
    builder.add_edge(START, "model")
    builder.add_conditional_edges(
        "model", lambda state: "tools" if state["messages"][-1].tool_calls else END, ["tools", END]
    )
    builder.add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


# The functional API


def build_functional(saver: Saver) -> Graph:
    @task
    def square(number: int) -> int:
        return number * number

    @entrypoint(checkpointer=saver, context_schema=Executions)
    def workflow(number: int, *, previous: int | None = None) -> Any:
        first = square(number).result()
        answer = interrupt(f"add {first}?")
        return entrypoint.final(value=f"{answer} {first}", save=(previous or 0) + first)

    return workflow
