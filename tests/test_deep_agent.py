"""A deep agent, whose messages and files are delta channels: what it keeps survives prunes, copies and processes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from deepagents import create_deep_agent
from kit import (
    MEMORY,
    SEAWEED_AIO,
    SEAWEED_BOTO,
    Archive,
    Driven,
    archive_fixture,  # noqa: F401 - a fixture
    kind_fixture,  # noqa: F401 - a fixture
    loop_fixture,  # noqa: F401 - a fixture
)
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from observing import Ordinals

EDITS = 8


def call(number: int, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name=name, args=arguments, id=f"call {number} {name} {arguments.get('file_path', '')}")


class Scripted(BaseChatModel):
    """Answers by what it is asked, and by how many answers there are: the same in every process."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **settings: Any) -> Scripted:
        return self

    def _generate(self, messages: list[BaseMessage], *arguments: Any, **settings: Any) -> ChatResult:
        number = sum(isinstance(message, AIMessage) for message in messages)
        answer = self._answer(number, [message for message in messages if isinstance(message, HumanMessage)][-1])
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def _answer(self, number: int, asked: HumanMessage) -> AIMessage:
        """Each turn writes two files, changes one again and again, asks a subagent, and sums up."""
        text = f"answer {number}"
        if str(asked.content).startswith("sub"):
            return AIMessage(f"the subagent heard {asked.content}", id=text)
        turn, step = divmod(number, EDITS + 3)
        plan = f"/plan {turn}.txt"
        calls: list[ToolCall] = []
        if step == 0:
            notes = f"notes of turn {turn}\n" * 20
            calls = [
                call(number, "write_file", file_path=f"/notes/{turn}.md", content=notes),
                call(number, "write_file", file_path=plan, content="draft 0"),
            ]
        elif step <= EDITS:
            old, new = f"draft {step - 1}", f"draft {step}"
            calls = [call(number, "edit_file", file_path=plan, old_string=old, new_string=new)]
        elif step == EDITS + 1:
            calls = [call(number, "task", description=f"sub task {turn}", subagent_type="general-purpose")]
        return AIMessage(text, id=text, tool_calls=calls)


# The agent's channels have a snapshot every fifty updates: six turns are enough for both. A server is slow for that.
TURNS = {MEMORY: 6, SEAWEED_BOTO: 1, SEAWEED_AIO: 1}


def agent_on(saver: Any) -> Any:
    return create_deep_agent(model=Scripted(), checkpointer=saver)


def config(thread_id: str = "t") -> Any:
    return {"configurable": {"thread_id": thread_id}, "recursion_limit": 200}


def talk(saver_of: Callable[[], Any], turns: range, thread_id: str = "t") -> None:
    """Some turns, each in a process of its own."""
    for turn in turns:
        asked = HumanMessage(f"please do {turn}", id=f"question {turn}")
        agent_on(saver_of()).invoke({"messages": [asked]}, config(thread_id), durability="sync")


# Times are those of the run, and a copy is named after its target.
_TIMES = re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+(?:\+00:00|Z)?")


def plain(value: Any) -> Any:
    text = repr(Ordinals().plain(value))
    return _TIMES.sub("time", text).replace("'thread_id': 'copy'", "'thread_id': 't'")


def history(saver: Any, thread_id: str = "t") -> list[Any]:
    return [plain(snapshot) for snapshot in agent_on(saver).get_state_history(config(thread_id))]


def state(saver: Any, thread_id: str = "t") -> Any:
    return plain(agent_on(saver).get_state(config(thread_id), subgraphs=True).values)


def test_messages_and_files_are_delta_channels() -> None:
    """This release of the agent is what the test is about."""
    channels = agent_on(InMemorySaver()).channels
    assert {name for name, channel in channels.items() if isinstance(channel, DeltaChannel)} >= {"messages", "files"}


@pytest.mark.parametrize("kind", TURNS)
def test_agent(archive: Archive, kind: str) -> None:
    """State and history equal the memory saver's, survive a copy, a prune and new processes, and the agent goes on."""
    turns, more = range(TURNS[kind]), range(TURNS[kind], TURNS[kind] + 1)
    reference = InMemorySaver()
    talk(lambda: reference, turns)
    expected = state(reference)
    assert f"draft {EDITS}" in expected

    def process() -> Any:
        """A saver that has seen nothing yet; the async one's sync methods serve a graph outside of its loop."""
        opened = archive.open()
        if isinstance(opened, Driven):
            opened.get_tuple(config())  # binds it to the loop
            return opened.saver
        return opened

    talk(process, turns)
    assert state(process()) == expected
    assert history(process()) == history(reference)
    saver = process()
    saver.copy_thread("t", "copy")
    assert state(process(), "copy") == expected
    plan = saver.plan_prune(["copy"])
    saver.prune(["copy"])
    assert state(process(), "copy") == expected
    # What leads back to the snapshots of messages and files is left.
    fates = plan.threads[0].fates
    assert sum(1 for _ in saver.list({"configurable": {"thread_id": "copy"}})) == sum(fate.stays for fate in fates)
    assert all(fate.stays for fate in fates) == (kind != MEMORY)
    talk(lambda: reference, more)
    for thread_id in ("copy", "t"):
        talk(process, more, thread_id)
        assert state(process(), thread_id) == state(reference)
