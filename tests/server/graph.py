"""The application: a subgraph that may ask a question, a node that may never end, and a delta channel."""

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt


def appended(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*state, *(line for lines in writes for line in lines)]


class Review(TypedDict, total=False):
    task: str
    answer: str


class State(Review):
    notes: Annotated[list[str], operator.add]
    log: Annotated[list[str], DeltaChannel(appended, snapshot_frequency=3)]


async def prepare(state: State) -> dict[str, Any]:
    return {"notes": [f"prepared {state['task']}"], "log": [f"prepare {state['task']}"]}


async def ask(state: Review) -> dict[str, Any]:
    return {"answer": interrupt({"question": state["task"]}) if state["task"] == "ask" else "none"}


async def work(state: State) -> dict[str, Any]:
    if state["task"] == "hang":
        await asyncio.sleep(3600)
    return {"notes": [f"worked on {state['task']}"], "log": [f"work, answer {state['answer']}"]}


review = StateGraph(Review).add_node(ask).add_edge(START, "ask").compile()
builder = StateGraph(State).add_node(prepare).add_node("review", review).add_node(work)
graph = builder.add_edge(START, "prepare").add_edge("prepare", "review").add_edge("review", "work").compile()
