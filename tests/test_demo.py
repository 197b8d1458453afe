"""`s3-saver demo`, through the command line, as its users start it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from manifests.keys import Layout
from s3_saver.demo_graph import PRICES, build_graph, first_input

COMMAND = Path(sys.executable).with_name("s3-saver")


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the demonstration without any of this process's AWS settings."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment["PYTHONIOENCODING"] = "utf-8"
    return subprocess.run(
        [COMMAND, "demo", *arguments], env=environment, capture_output=True, encoding="utf-8", timeout=240, check=False
    )


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON document of one demonstration, whose bucket is kept."""
    done = run_demo("--json", "--data", str(tmp_path_factory.mktemp("demo")))
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)  # so nothing else is on stdout
    return found


def test_another_process_resumes(report: dict[str, Any]) -> None:
    """The first process stops at the question; a second one finds that checkpoint and finishes."""
    first, second = report["processes"]
    assert first["status"] == "interrupted"
    assert first["next"] == ["booking"]
    assert first["interrupts"] == ["Book Lisbon, 8 people, 2,960 EUR?"]
    assert first["found"] is None
    assert second["status"] == "finished"
    assert second["next"] == []
    assert first["pid"] != second["pid"]
    assert second["found"] in {
        entry["checkpoint_id"] for entry in report["history"] if entry["process"] == first["pid"]
    }
    assert report["answer"] == "Done: Lisbon is booked for 8 people at 2,960 EUR."


def test_history(report: dict[str, Any]) -> None:
    """The history is complete, newest first, and says which process put each checkpoint."""
    history = report["history"]
    ids = [entry["checkpoint_id"] for entry in history]
    assert ids == sorted(ids, reverse=True)
    root = [entry for entry in history if entry["namespace"] == ""]
    assert [entry["step"] for entry in root] == list(range(7, -2, -1))
    assert [entry["parent_id"] for entry in root] == [*(entry["checkpoint_id"] for entry in root[1:]), None]
    second, first = dict.fromkeys(entry["process"] for entry in history)
    assert [first, second] == [process["pid"] for process in report["processes"]]
    assert all(entry["process"] in (first, second) for entry in history)


def test_subgraph_has_its_own_namespace(report: dict[str, Any]) -> None:
    """The subgraph's steps are in one namespace of their own, begun by one process and ended by the other."""
    inner = [entry for entry in report["history"] if entry["namespace"]]
    assert len({entry["namespace"] for entry in inner}) == 1
    assert inner[0]["namespace"].startswith("booking:")
    assert [entry["next"] for entry in inner] == [[], ["book"], ["approve"], ["quote"], ["__start__"]]
    assert len({entry["process"] for entry in inner}) == 2
    asked = inner[2]
    assert {write["channel"] for write in asked["writes"]} == {"__interrupt__", "__resume__", "approved"}


def test_fan_out_keeps_its_order(report: dict[str, Any]) -> None:
    """Three tasks run at once; their results come in the order in which they were sent."""
    assert [entry["next"] for entry in report["history"] if "compare" in entry["next"]] == [["compare"] * 3]
    assert [line.split(":")[0] for line in report["state"]["reports"]] == list(PRICES)


def test_objects_follow_the_layout(report: dict[str, Any]) -> None:
    """The bucket holds each checkpoint of the history under its key, its writes beside it, and no empty object."""
    layout = Layout.under("")
    objects = {found["key"]: layout.parse(found["key"]) for found in report["objects"]}
    assert list(objects) == sorted(objects)
    assert all(found["size"] > 0 for found in report["objects"])
    assert [key for key, parsed in objects.items() if parsed.kind == "checkpoint"] == sorted(
        layout.checkpoint(report["thread_id"], entry["namespace"], entry["checkpoint_id"])
        for entry in report["history"]
    )
    writes = {parsed.checkpoint_id for parsed in objects.values() if parsed.kind == "writes"}
    assert writes == {entry["checkpoint_id"] for entry in report["history"] if entry["writes"]}


def test_output_for_people() -> None:
    """Progress goes to stderr; history, tree, answer and advice to stdout."""
    done = run_demo()
    assert done.returncode == 0, done.stderr
    for words in ("resumes the thread", "booking / quote", "⏸"):
        assert words in done.stderr
    for words in (
        "The thread's history, newest first",
        "compare ×3",
        "▶ answered: yes",
        "└── threads/",
        "checkpoint_ns=~/",
        "_checkpoint.msgpack",
        "Why this worked",
        "Final answer: Done: Lisbon is booked",
        "s3-saver serve --data DIR",
    ):
        assert words in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_error_is_one_line(tmp_path: Path) -> None:
    """A data folder that cannot be made is refused with one clear line, and nothing on stdout."""
    occupied = tmp_path / "file"
    occupied.write_text("no folder")
    done = run_demo("--data", str(occupied / "data"))
    assert done.returncode == 1
    assert done.stdout == ""
    _, error = done.stderr.splitlines()  # the first says what was begun
    assert error.startswith("error: ")
    assert str(occupied) in error


def test_refusal() -> None:
    """Whoever says no gets no booking."""
    graph = build_graph(InMemorySaver())
    config: Any = {"configurable": {"thread_id": "refused"}}
    graph.invoke(first_input(), config)
    result = graph.invoke(Command(resume="too far"), config)
    assert result["messages"][-1].content == "Done: Not booked, the answer was 'too far'."
