"""A graph that does what the test asks of it: take notes, ask a question, or never end."""

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt


def appended(state: list[str], writes: list[list[str]]) -> list[str]:
    return [*state, *(line for lines in writes for line in lines)]


class State(TypedDict, total=False):
    task: str
    notes: Annotated[list[str], operator.add]
    log: Annotated[list[str], DeltaChannel(appended)]
    answer: str


async def prepare(state: State) -> dict[str, Any]:
    return {"notes": [f"prepared {state['task']}"], "log": [f"prepare {state['task']}"]}


async def work(state: State) -> dict[str, Any]:
    if state["task"] == "hang":
        await asyncio.sleep(3600)
    answer = interrupt({"question": state["task"]}) if state["task"] == "ask" else "none"
    return {"notes": [f"worked on {state['task']}"], "log": [f"work {answer}"], "answer": answer}


builder = StateGraph(State)
builder.add_node(prepare)
builder.add_node(work)
builder.add_edge(START, "prepare")
builder.add_edge("prepare", "work")
graph = builder.compile()
