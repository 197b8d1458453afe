"""Random graphs, and random ways to drive a thread of one: what rule K is tried on.

A graph follows from its recipe and a recipe from dice, so a seed says it all. What a node does follows from its name
and the turn: the same operation on equal states ends in equal states.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any

from langgraph.channels.delta import DeltaChannel
from langgraph.errors import EmptyInputError, GraphRecursionError, InvalidUpdateError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Overwrite, Send, StateUpdate, interrupt
from typing_extensions import TypedDict

Config = dict[str, Any]
State = dict[str, Any]

FREQUENCIES = (1, 2, 3, 5, 10, 100)
# One begins like LangGraph's own channels: a state's key may have any name.
LISTS = ("a", "b", "__c")
MAPPING = "d"


def extend(state: list[str], batches: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for batch in batches for item in batch)]


def merge(state: Mapping[str, str], batches: Sequence[Mapping[str, str]]) -> dict[str, str]:
    return {key: value for batch in (state, *batches) for key, value in batch.items()}


@dataclass(frozen=True)
class Recipe:
    """A graph. `frequencies` has the delta channels; the others of the same names have plain reducers.

    `child` is None, "fresh" (a subgraph that starts anew at each call) or "remembering" (with a checkpointer of True).
    """

    seed: int
    frequencies: Mapping[str, int]
    turns: int
    parallel: bool
    sends: int
    asks: bool
    overwrites: bool
    child: str | None
    child_asks: bool
    breakpoint: bool

    @classmethod
    def of(cls, dice: Random, *, deltas: bool) -> Recipe:
        names = [*LISTS, MAPPING, "own"]
        chosen = [name for name in names if dice.random() < 0.75] or ["a"]
        return cls(
            seed=dice.randrange(1_000_000),
            frequencies={name: dice.choice(FREQUENCIES) for name in chosen} if deltas else {},
            turns=dice.randint(1, 3),
            parallel=dice.random() < 0.5,
            sends=dice.choice([0, 0, 2, 3]),
            asks=dice.random() < 0.5,
            overwrites=dice.random() < 0.5,
            child=dice.choice([None, None, "fresh", "remembering"]),
            child_asks=dice.random() < 0.5,
            breakpoint=dice.random() < 0.15,
        )

    def channel(self, name: str, kind: type, reducer: Callable[..., Any], plain: Callable[..., Any]) -> Any:
        if name not in self.frequencies:
            return Annotated[kind, plain]
        return Annotated[kind, DeltaChannel(reducer, kind, snapshot_frequency=self.frequencies[name])]

    def state(self, *lists: str) -> Any:
        keys: State = {name: self.channel(name, list, extend, operator.add) for name in lists}
        keys[MAPPING] = self.channel(MAPPING, dict, merge, operator.or_)
        return TypedDict("State", {**keys, "turn": int, "note": str}, total=False)  # type: ignore[misc,operator]

    def writes(self, node: str, turn: int) -> State:
        """What a node writes at a turn."""
        dice = Random(f"{self.seed} {node} {turn}")
        found: State = {name: [f"{node}{turn}"] for name in LISTS if dice.random() < 0.5}
        if dice.random() < 0.4:
            found[MAPPING] = {dice.choice("xyz"): f"{node}{turn}"}
        return found

    def build(self, saver: Any) -> Any:
        """START -> work (and aside) -> workers -> ask -> child -> last, and again until `turns` are done."""
        builder: Any = StateGraph(self.state(*LISTS))
        builder.add_node("work", self._work)
        builder.add_edge(START, "work")
        builder.add_node("plan", lambda state: {})
        if self.parallel:
            builder.add_node("aside", lambda state: self.writes("aside", state.get("turn", 0)))
            builder.add_edge(START, "aside")
            builder.add_edge("aside", "plan")
        builder.add_edge("work", "plan")
        builder.add_node("ask", self._ask)
        if self.sends:
            builder.add_node("worker", lambda item: self.writes(f"worker{item['number']}", item["turn"]))
            builder.add_conditional_edges("plan", self._send, ["worker"])
            builder.add_edge("worker", "ask")
        else:
            builder.add_edge("plan", "ask")
        if self.child:
            builder.add_node("child", self._child())
            builder.add_edge("ask", "child")
        builder.add_node("last", lambda state: self.writes("last", state.get("turn", 0)))
        builder.add_edge("child" if self.child else "ask", "last")
        builder.add_conditional_edges("last", self._again, ["work", END])
        return builder.compile(checkpointer=saver, interrupt_before=["last"] if self.breakpoint else None)

    def _again(self, state: State) -> str:
        return END if state.get("turn", 0) % self.turns == 0 else "work"

    def _send(self, state: State) -> list[Send]:
        return [Send("worker", {"number": n, "turn": state.get("turn", 0)}) for n in range(self.sends)]

    def _work(self, state: State) -> State:
        turn = state.get("turn", 0) + 1
        found = self.writes("work", turn)
        if self.overwrites and turn % 3 == 0:
            found["a"] = Overwrite([f"anew {turn}"])
        return {**found, "turn": turn}

    def _ask(self, state: State) -> State:
        turn = state.get("turn", 0)
        if self.asks and turn % 2:
            return {"b": [f"heard {interrupt(f'turn {turn}?')}"]}
        return self.writes("ask", turn)

    def _child(self) -> Any:
        def inner(state: State) -> State:
            turn = state.get("turn", 0)
            return {"own": [f"inner {turn} after {len(state.get('own', []))}"], "note": f"note {turn}"}

        def ask(state: State) -> State:
            heard = interrupt("child?") if self.child_asks else "nothing"
            return {"own": [f"heard {heard}"]}

        keys: State = {"own": self.channel("own", list, extend, operator.add), "turn": int, "note": str}
        builder: Any = StateGraph(TypedDict("Inner", keys, total=False))  # type: ignore[misc,operator]
        builder.add_sequence([("inner", inner), ("inner_ask", ask), ("inner_last", inner)])
        builder.add_edge(START, "inner")
        return builder.compile(checkpointer=True if self.child == "remembering" else None)


# Driving a thread

# What graphs refuse: an update that no node could have made, say. It changes nothing, or as much as a failed run does.
REFUSALS = (InvalidUpdateError, EmptyInputError, GraphRecursionError)


@dataclass
class Drive:
    """One thread of a graph, and the dice that say what is done to it."""

    graph: Any
    config: Config
    dice: Random
    operations: int = 0

    def step(self, *, on_head: bool = False) -> str:
        """Do something, on the newest checkpoint alone or on any. Returns what it was."""
        self.operations += 1
        weights = _ON_HEAD if on_head else _ON_HEAD | _ANYWHERE
        name = self.dice.choices(list(weights), list(weights.values()))[0]
        try:
            getattr(self, f"_{name}")()
        except REFUSALS as refusal:
            name += f" (refused: {type(refusal).__name__})"
        return name

    def _input(self) -> State:
        text = f"in {self.operations}"
        return {
            **{name: [text] for name in LISTS if self.dice.random() < 0.5},
            **({MAPPING: {"w": text}} if self.dice.random() < 0.3 else {}),
            "note": text,
        }

    def _invoke(self, given: Any, config: Config | None = None) -> None:
        durability = self.dice.choice(["sync", "async", "exit"])
        target: Any = {**(config or self.config), "recursion_limit": 60}
        if self.dice.random() < 0.15:
            asyncio.run(self.graph.ainvoke(given, target, durability=durability))
        else:
            self.graph.invoke(given, target, durability=durability)

    def _past(self) -> Config:
        """The config of any checkpoint of the root graph."""
        history = list(self.graph.get_state_history(self.config))
        return self.dice.choice(history).config if history else self.config

    # On the newest checkpoint

    def _run(self) -> None:
        self._invoke(self._input())

    def _go_on(self) -> None:
        self._invoke(None)

    def _resume(self) -> None:
        update = self._input() if self.dice.random() < 0.4 else None
        asked = self.graph.get_state(self.config).interrupts
        answer = f"answer {self.operations}"
        if not asked:
            return self._run()
        return self._invoke(Command(resume={one.id: answer for one in asked}, update=update))

    def _update(self) -> None:
        self.graph.update_state(self.config, self._input(), as_node=self._node())

    def _updates(self) -> None:
        given = [[StateUpdate(self._input(), as_node=self._node() or "last")] for _ in range(self.dice.randint(1, 3))]
        self.graph.bulk_update_state(self.config, given)

    def _end(self) -> None:
        self.graph.update_state(self.config, None, as_node=END)

    def _duplicate(self) -> None:
        self.graph.update_state(self.config, None, as_node="__copy__")

    def _node(self) -> str | None:
        return self.dice.choice([None, "work", "plan", "ask", "last"])

    # On any

    def _update_past(self) -> None:
        self.graph.update_state(self._past(), self._input(), as_node=self._node() or "plan")

    def _update_together(self) -> None:
        names = self.dice.sample(["work", "plan", "ask", "last"], 2)
        self.graph.bulk_update_state(self._past(), [[StateUpdate(self._input(), as_node=name) for name in names]])

    def _duplicate_past(self) -> None:
        self.graph.update_state(self._past(), None, as_node="__copy__")

    def _replay(self) -> None:
        self._invoke(None, self._past())

    def _input_past(self) -> None:
        self._invoke(self._input(), self._past())

    def _update_child(self) -> None:
        """Change the state of a subgraph that waits for an answer."""
        for task in self.graph.get_state(self.config, subgraphs=True).tasks:
            if task.state is not None:
                self.graph.update_state(task.state.config, {"own": [f"from outside {self.operations}"]})
                return None
        return self._run()


_ON_HEAD = {"run": 6, "go_on": 1, "resume": 5, "update": 2, "updates": 1, "end": 1, "duplicate": 1}
_ANYWHERE = {
    "update_past": 2,
    "update_together": 1,
    "duplicate_past": 1,
    "replay": 2,
    "input_past": 2,
    "update_child": 1,
}
