"""The graph of `s3-saver demo`: a travel desk that asks a person before it books.

    assistant -> tools -> assistant -> compare (three at once) -> assistant -> booking -> assistant
                                                                   booking: quote -> approve -> book

`assistant` is a chat model that answers from a script, so no network and no key is needed. Everything else is what an
application would write: tools run by `ToolNode`, a fan-out by `Send`, and a subgraph that stops at `interrupt()`.
The module starts nothing: `build_graph(checkpointer)` takes any LangGraph checkpointer.
"""

import operator
import time
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolCall,
    ToolMessage,
)
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send, interrupt

QUESTION = "Where in Europe should our team meet in May?"
PRICES = {"Lisbon": 370, "Oslo": 610, "Rome": 420}
TEAM_SIZE = 8


class Trip(TypedDict, total=False):
    """State of the whole graph; `reports` grows in the order in which the cities were sent."""

    messages: Annotated[list[AnyMessage], add_messages]
    reports: Annotated[list[str], operator.add]


class Visit(TypedDict):
    """What one of the parallel workers is given."""

    city: str


class Booking(TypedDict, total=False):
    """State of the subgraph; it shares `messages` with the graph around it."""

    messages: Annotated[list[AnyMessage], add_messages]
    quote: str
    approved: bool


@tool
def team_size() -> int:
    """How many people travel."""
    return TEAM_SIZE


@tool
def find_cities(month: str) -> list[str]:
    """Cities that have a free venue in that month."""
    return list(PRICES)


@tool
def book_venue(city: str, people: int) -> str:
    """Book the venue; costs money, so a person is asked first."""
    return f"{city} is booked for {people} people at {PRICES[city] * people:,} EUR."


class ScriptedModel(BaseChatModel):
    """A chat model whose answer depends only on the messages so far."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any) -> "ScriptedModel":
        """Return the model itself: the script knows which tools there are."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=_scripted_answer(messages))])


def _scripted_answer(messages: list[BaseMessage]) -> AIMessage:
    """Answer by the number of answers given so far."""
    match sum(isinstance(message, AIMessage) for message in messages):
        case 0:
            return _calling("I look up who travels and what is free.", team_size={}, find_cities={"month": "May"})
        case 1:
            return AIMessage(f"I compare {', '.join(PRICES)}.")
        case 2:
            return _calling("Lisbon costs least.", book_venue={"city": "Lisbon", "people": TEAM_SIZE})
        case _:
            return AIMessage(f"Done: {messages[-1].content}")


def _calling(content: str, **arguments: dict[str, Any]) -> AIMessage:
    calls = [ToolCall(name=name, args=given, id=f"call_{name}") for name, given in arguments.items()]
    return AIMessage(content, tool_calls=calls)


def _assistant(state: Trip) -> Trip:
    model = ScriptedModel().bind_tools([team_size, find_cities, book_venue])
    notes = [SystemMessage("\n".join(state.get("reports", [])))]
    return {"messages": [model.invoke([*notes, *state["messages"]])]}


def _after_assistant(state: Trip) -> str | list[Send]:
    """Send tool calls to the tools, the booking to its subgraph, and every city to a worker of its own."""
    last = state["messages"][-1]
    calls = last.tool_calls if isinstance(last, AIMessage) else []
    if any(call["name"] == "book_venue" for call in calls):
        return "booking"
    if calls:
        return "tools"
    if not state.get("reports"):
        return [Send("compare", Visit(city=city)) for city in PRICES]
    return END


def _compare(state: Visit) -> Trip:
    # The first city takes longest: the reports still come out in the order in which they were sent.
    city = state["city"]
    time.sleep(0.05 * (len(PRICES) - list(PRICES).index(city)))
    return {"reports": [f"{city}: {PRICES[city]} EUR per person"]}


def _booking_call(state: Booking) -> Any:
    last = state["messages"][-1]
    assert isinstance(last, AIMessage)
    return last.tool_calls[0]


def _quote(state: Booking) -> Booking:
    arguments = _booking_call(state)["args"]
    price = PRICES[arguments["city"]] * arguments["people"]
    return {"quote": f"{arguments['city']}, {arguments['people']} people, {price:,} EUR"}


def _approve(state: Booking) -> Booking:
    """Stop here until a person has answered; a refusal answers the tool call in the tool's place."""
    answer = interrupt(f"Book {state['quote']}?")
    if answer == "yes":
        return {"approved": True}
    refusal = ToolMessage(f"Not booked, the answer was {answer!r}.", tool_call_id=_booking_call(state)["id"])
    return {"approved": False, "messages": [refusal]}


def _after_approve(state: Booking) -> str:
    return "book" if state["approved"] else END


def _build_booking() -> CompiledStateGraph[Booking, None, Booking, Booking]:
    builder = StateGraph(Booking)
    builder.add_node("quote", _quote)
    builder.add_node("approve", _approve)
    builder.add_node("book", ToolNode([book_venue]))
    builder.add_edge(START, "quote")
    builder.add_edge("quote", "approve")
    builder.add_conditional_edges("approve", _after_approve, ["book", END])
    return builder.compile()


def build_graph(checkpointer: BaseCheckpointSaver[Any]) -> CompiledStateGraph[Trip, None, Trip, Trip]:
    """Return the travel desk, saved by `checkpointer`; the subgraph is saved by it too."""
    builder = StateGraph(Trip)
    builder.add_node("assistant", _assistant)
    builder.add_node("tools", ToolNode([team_size, find_cities]))
    builder.add_node("compare", _compare, input_schema=Visit)
    builder.add_node("booking", _build_booking())
    builder.add_edge(START, "assistant")
    builder.add_conditional_edges("assistant", _after_assistant, ["tools", "compare", "booking", END])
    builder.add_edge("tools", "assistant")
    builder.add_edge("compare", "assistant")
    builder.add_edge("booking", "assistant")
    return builder.compile(checkpointer=checkpointer)


def first_input() -> Trip:
    """What starts the demonstration's thread."""
    return {"messages": [HumanMessage(QUESTION)]}
