"""A graph on one thread, driven through its sync or its async methods, and everything that can be seen of it.

A scenario is written once, as an `async def` over a `Face`. `finish` runs it without an event loop when the face is
synchronous, since such a face never waits. What a face notes is plain data without anything that differs between two
runs: uuids and interrupt ids become numbers by order of appearance, times are left out. So two savers that keep the
same things give equal observations, and pytest can show where they differ.
"""

import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.pregel import Pregel
from langgraph.types import Interrupt, PregelTask, Send, StateSnapshot

Durability = Literal["sync", "async", "exit"]
Observation = tuple[str, Any]

# A uuid in either spelling: checkpoint and task ids have dashes, interrupt ids have none.
_IDS = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}|[0-9a-f]{32}")
_CONFIG_KEYS = ("thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map")


@dataclass
class Executions:
    """The graphs' context: nodes say here that they ran, which no saver sees."""

    names: list[str] = field(default_factory=list)

    def count(self, name: str) -> int:
        return self.names.count(name)


class Ordinals:
    """Numbers ids by order of appearance and turns LangGraph's objects into plain data."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def _number(self, match: re.Match[str]) -> str:
        return f"#{self._numbers.setdefault(match[0], len(self._numbers))}"

    def plain(self, value: Any) -> Any:
        match value:
            case str():
                return _IDS.sub(self._number, value)
            case StateSnapshot():
                return self._snapshot(value)
            case PregelTask():
                return self._task(value)
            case Interrupt():
                return {"interrupt": self.plain(value.value), "id": self.plain(value.id)}
            case Send():
                return {"send": value.node, "arg": self.plain(value.arg)}
            case BaseMessage():
                return self.plain(value.model_dump())
            case BaseException():
                return self.plain(repr(value))
            case dict():
                return {self.plain(key): self.plain(item) for key, item in value.items()}
            case set() | frozenset():
                return sorted(self.plain(item) for item in value)
            case list() | tuple():
                return [self.plain(item) for item in value]
            case None | bool() | int() | float() | bytes():
                return value
        raise TypeError(f"scenarios must not hold a {type(value).__name__}: {value!r}")

    def config(self, config: RunnableConfig | None) -> Any:
        """The keys that say which checkpoint is meant; savers may add others to what they return."""
        if config is None:
            return None
        return self.plain({key: config["configurable"].get(key) for key in _CONFIG_KEYS})

    def _snapshot(self, snapshot: StateSnapshot) -> Any:
        return {
            "config": self.config(snapshot.config),
            "parent": self.config(snapshot.parent_config),
            "values": self.plain(snapshot.values),
            "next": self.plain(snapshot.next),
            "metadata": self.plain(snapshot.metadata),
            "tasks": [self.plain(task) for task in snapshot.tasks],
            "interrupts": self.plain(snapshot.interrupts),
            "has_time": snapshot.created_at is not None,
        }

    def _task(self, task: PregelTask) -> Any:
        inner = self.config(task.state) if isinstance(task.state, dict) else self.plain(task.state)
        return {
            "id": self.plain(task.id),
            "name": task.name,
            "path": self.plain(task.path),
            "error": self.plain(task.error),
            "interrupts": self.plain(task.interrupts),
            "state": inner,
            "result": self.plain(task.result),
        }

    def stored(self, found: CheckpointTuple) -> Any:
        """One checkpoint as the saver returns it, without what the saver chooses itself (its versions)."""
        return {
            "config": self.config(found.config),
            "parent": self.config(found.parent_config),
            "metadata": self.plain(found.metadata),
            "channels": self.plain(dict(sorted(found.checkpoint["channel_values"].items()))),
            "versioned": sorted(self.plain(channel) for channel in found.checkpoint["channel_versions"]),
            "writes": self._writes(found),
        }

    def _writes(self, found: CheckpointTuple) -> Any:
        by_task: dict[str, list[tuple[str, Any]]] = {}
        for task, channel, value in found.pending_writes or []:
            by_task.setdefault(task, []).append((channel, value))
        # Tasks of equal paths come in the order of their ids, which differs from run to run.
        groups = sorted(by_task.values(), key=lambda writes: repr(Ordinals().plain(writes)))
        return self.plain(groups)


class Face:
    """A graph on one thread; every method is awaited, whichever colour it calls."""

    def __init__(
        self, graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, durability: Durability, colour: str
    ) -> None:
        self.graph = graph
        self.config = config
        self.executions = Executions()
        self.observations: list[Observation] = []
        self._durability = durability
        self._async = colour == "async"
        self._ordinals = Ordinals()

    async def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if self._async:
            return await getattr(self.graph, f"a{name}")(*args, **kwargs)
        return getattr(self.graph, name)(*args, **kwargs)

    async def _all(self, owner: Any, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        if self._async:
            return [item async for item in getattr(owner, f"a{name}")(*args, **kwargs)]
        return list(getattr(owner, name)(*args, **kwargs))

    def note(self, what: str, value: Any) -> None:
        self.observations.append((what, self._ordinals.plain(value)))

    async def invoke(self, entry: Any, config: RunnableConfig | None = None, **settings: Any) -> Any:
        """Run until the graph ends, stops or fails; an error of a node is an observation too."""
        target: Any = {**self.config, **(config or {}), **settings}
        try:
            result = await self._call("invoke", entry, target, durability=self._durability, context=self.executions)
        except ArithmeticError as error:  # what the scenarios' nodes raise
            result = error
        if isinstance(result, dict) and "__interrupt__" in result:
            # Parallel tasks stop in any order.
            result = {**result, "__interrupt__": sorted(result["__interrupt__"], key=lambda asked: repr(asked.value))}
        self.note("result", result)
        self.note("executions", sorted(self.executions.names))
        self.note("state", await self.state())
        return result

    async def update(
        self, values: Any, *, config: RunnableConfig | None = None, as_node: str | None = None
    ) -> RunnableConfig:
        made: RunnableConfig = await self._call("update_state", config or self.config, values, as_node)
        self.observations.append(("updated", self._ordinals.config(made)))
        self.note("state", await self.state())
        return made

    async def bulk_update(self, supersteps: Any) -> None:
        made = await self._call("bulk_update_state", self.config, supersteps)
        self.observations.append(("updated", self._ordinals.config(made)))
        self.note("state", await self.state())

    async def state(self, config: RunnableConfig | None = None) -> StateSnapshot:
        found: StateSnapshot = await self._call("get_state", config or self.config, subgraphs=True)
        return found

    async def history(self, config: RunnableConfig | None = None, **query: Any) -> list[StateSnapshot]:
        return await self._all(self.graph, "get_state_history", config or self.config, **query)

    async def observe_all(self) -> None:
        """Note the history of every namespace of the thread, and all that is stored in it."""
        stored = sorted(await self._stored(), key=lambda found: str(found.config["configurable"]["checkpoint_id"]))
        for namespace in _namespaces(stored):
            config: RunnableConfig = {
                "configurable": {"thread_id": self._thread_id, "checkpoint_ns": namespace},
            }
            self.note(f"history of {_IDS.sub('#', namespace)!r}", await self.history(config))
            within = [found for found in stored if found.config["configurable"]["checkpoint_ns"] == namespace]
            self.observations.append(("stored", [self._ordinals.stored(found) for found in within]))

    @property
    def _thread_id(self) -> str:
        return str(self.config["configurable"]["thread_id"])

    async def _stored(self) -> list[CheckpointTuple]:
        config: RunnableConfig = {"configurable": {"thread_id": self._thread_id}}
        return await self._all(self.graph.checkpointer, "list", config)


def _namespaces(stored: list[CheckpointTuple]) -> list[str]:
    """The namespaces by name, those of one node by age; `stored` is oldest first."""
    by_age = dict.fromkeys(str(found.config["configurable"]["checkpoint_ns"]) for found in stored)
    return sorted(by_age, key=lambda namespace: _IDS.sub("#", namespace))


Drive = Callable[[Face], Coroutine[Any, Any, None]]


def finish(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never waits for anything."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise AssertionError("a synchronous scenario waited")
