"""The LangGraph server with `AsyncS3Saver` as its checkpointer, driven by the SDK; then a look into the bucket."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from langgraph.checkpoint.base import CheckpointTuple
from langgraph_sdk.client import SyncLangGraphClient
from langgraph_server import LangGraphServer
from savers import sync_saver

from s3_saver import S3Saver
from s3_saver.embedded import EmbeddedS3

FOLDER = f"langgraph-server-{uuid4().hex[:12]}"
EVERYTHING = 1000


@pytest.fixture(scope="module")
def server(seaweed: EmbeddedS3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LangGraphServer]:
    """The server, one for all tests of this module. It stops without a complaint."""
    connection = {"S3_SAVER_CONN": f"s3://{seaweed.bucket}/{FOLDER}"}
    with LangGraphServer(tmp_path_factory.mktemp("server"), seaweed.environment() | connection) as server:
        yield server
    assert server.complaints() == []


@pytest.fixture
def client(server: LangGraphServer) -> SyncLangGraphClient:
    return server.client


@pytest.fixture
def archive(seaweed: EmbeddedS3, server: LangGraphServer) -> S3Saver:
    """A saver of this process on what the server has stored."""
    return sync_saver(seaweed, FOLDER)


def new_thread(client: SyncLangGraphClient, *tasks: str) -> str:
    """A thread in which the tasks were run one after another."""
    thread_id = client.threads.create()["thread_id"]
    for task in tasks:
        client.runs.wait(thread_id, "agent", input={"task": task})
    return thread_id


def values_of(client: SyncLangGraphClient, thread_id: str) -> Any:
    return client.threads.get_state(thread_id)["values"]


def history_of(client: SyncLangGraphClient, thread_id: str) -> list[Any]:
    return client.threads.get_history(thread_id, limit=EVERYTHING)


def stored(archive: S3Saver, thread_id: str) -> list[CheckpointTuple]:
    """Every checkpoint of the thread, of all namespaces."""
    return list(archive.list({"configurable": {"thread_id": thread_id}}))


def root_ids(archive: S3Saver, thread_id: str) -> list[str]:
    root = archive.list({"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}})
    return [found.checkpoint["id"] for found in root]


def content(found: CheckpointTuple) -> Any:
    """All of a checkpoint but its thread."""
    place = found.config["configurable"]
    parent = found.parent_config and found.parent_config["configurable"]["checkpoint_id"]
    metadata = {key: value for key, value in found.metadata.items() if key != "thread_id"}
    return place["checkpoint_ns"], parent, found.checkpoint, metadata, found.pending_writes


def prune(client: SyncLangGraphClient, thread_id: str, strategy: str) -> None:
    client.http.post("/prune", json={"thread_ids": [thread_id], "strategy": strategy})


def test_the_saver_lacks_no_method(server: LangGraphServer) -> None:
    """The server starts on the saver and warns of no method that it would need."""
    assert "Using custom checkpointer: AsyncS3Saver" in [event["event"] for event in server.events()]
    assert server.complaints() == []


def test_runs_are_stored(client: SyncLangGraphClient, archive: S3Saver) -> None:
    """What a run returns is the state that stands in the bucket, in the thread and the run's name."""
    thread_id = new_thread(client, "first")
    result = client.runs.wait(thread_id, "agent", input={"task": "second"})
    assert result == values_of(client, thread_id)
    assert result["notes"] == ["prepared first", "worked on first", "prepared second", "worked on second"]
    assert result["log"] == ["prepare first", "work, answer none", "prepare second", "work, answer none"]
    newest = archive.get_tuple({"configurable": {"thread_id": thread_id}})
    assert newest is not None
    assert newest.checkpoint["channel_values"]["notes"] == result["notes"]
    assert newest.metadata["thread_id"] == thread_id
    runs = client.runs.list(thread_id)
    assert {found.metadata["run_id"] for found in stored(archive, thread_id)} == {run["run_id"] for run in runs}


def test_interrupt_and_resume(client: SyncLangGraphClient, archive: S3Saver) -> None:
    """A subgraph's question waits in the bucket until the answer comes."""
    thread_id = client.threads.create()["thread_id"]
    asked = client.runs.wait(thread_id, "agent", input={"task": "ask"})
    assert [question["value"] for question in asked["__interrupt__"]] == [{"question": "ask"}]
    assert client.threads.get(thread_id)["status"] == "interrupted"
    inner = [found for found in stored(archive, thread_id) if found.config["configurable"]["checkpoint_ns"]]
    assert {found.config["configurable"]["checkpoint_ns"].split(":")[0] for found in inner} == {"review"}
    assert [channel for _, channel, _ in inner[0].pending_writes or ()] == ["__interrupt__"]
    answered = client.runs.wait(thread_id, "agent", command={"resume": "yes"})
    assert (answered["answer"], answered["log"]) == ("yes", ["prepare ask", "work, answer yes"])
    assert client.threads.get_state(thread_id)["next"] == []


def test_state_and_history(client: SyncLangGraphClient, archive: S3Saver) -> None:
    """The history is the root namespace's chain of checkpoints; an update goes on top, a fork beside it."""
    thread_id = new_thread(client, "first")
    history = history_of(client, thread_id)
    assert [state["checkpoint_id"] for state in history] == root_ids(archive, thread_id)
    assert all(newer["parent_checkpoint"] == older["checkpoint"] for newer, older in pairwise(history))
    past = next(state for state in history if state["next"] == ["work"])
    assert past["values"]["log"] == ["prepare first"]
    assert client.threads.get_state(thread_id, checkpoint=past["checkpoint"])["values"] == past["values"]
    client.threads.update_state(thread_id, {"notes": ["updated"]})
    assert values_of(client, thread_id)["notes"] == [*history[0]["values"]["notes"], "updated"]
    forked = client.runs.wait(thread_id, "agent", input=None, checkpoint=past["checkpoint"])
    assert forked["log"] == ["prepare first", "work, answer none"]
    assert values_of(client, thread_id) == forked
    longer = history_of(client, thread_id)
    assert [state["checkpoint_id"] for state in longer] == root_ids(archive, thread_id)
    assert [state["metadata"]["source"] for state in longer[:3]] == ["loop", "fork", "update"]
    assert longer[3:] == history


def test_copying_a_thread(client: SyncLangGraphClient, archive: S3Saver) -> None:
    """The copy has all of the source, with its own name in the metadata, and goes on alone from the same question."""
    source = new_thread(client, "ask")
    target = client.threads.copy(source)["thread_id"]
    assert [content(found) for found in stored(archive, target)] == [
        content(found) for found in stored(archive, source)
    ]
    assert {found.metadata["thread_id"] for found in stored(archive, target)} == {target}
    assert {state["metadata"]["thread_id"] for state in history_of(client, target)} == {target}
    before = stored(archive, source)
    assert client.runs.wait(target, "agent", command={"resume": "yes"})["answer"] == "yes"
    assert stored(archive, source) == before
    assert client.threads.get_state(source)["next"] == ["review"]


def test_rollback(server: LangGraphServer, archive: S3Saver) -> None:
    """A running run that is rolled back leaves nothing in the bucket; the next one starts where the thread was."""
    client = server.client
    thread_id = new_thread(client, "first")
    before = stored(archive, thread_id)
    running = client.runs.create(thread_id, "agent", input={"task": "hang"})["run_id"]
    server.until("work that hangs", lambda: client.threads.get_state(thread_id)["next"] == ["work"])
    assert running in {found.metadata["run_id"] for found in stored(archive, thread_id)}
    instead = client.runs.create(thread_id, "agent", input={"task": "second"}, multitask_strategy="rollback")["run_id"]
    client.runs.join(thread_id, instead)
    assert values_of(client, thread_id)["notes"][-2:] == ["prepared second", "worked on second"]
    assert "prepared hang" not in values_of(client, thread_id)["notes"]
    after = stored(archive, thread_id)
    assert [found for found in after if found.metadata["run_id"] != instead] == before
    assert running not in {run["run_id"] for run in client.runs.list(thread_id)}


def test_pruning_keeps_the_latest(client: SyncLangGraphClient, archive: S3Saver) -> None:
    """After a prune the state is what it was, delta channel included, and the thread goes on; the past is gone."""
    thread_id = new_thread(client, "first", "second")
    other = client.threads.copy(thread_id)["thread_id"]
    state, past, others = client.threads.get_state(thread_id), root_ids(archive, thread_id), stored(archive, other)
    kept = {fate.checkpoint_id for fate in archive.plan_prune([thread_id]).threads[0].fates if fate.stays}
    prune(client, thread_id, "KEEP_LATEST")
    assert client.threads.get_state(thread_id) == state
    assert {found.checkpoint["id"] for found in stored(archive, thread_id)} == kept
    assert root_ids(archive, thread_id)[0] == past[0]
    assert len(history_of(client, thread_id)) == len(root_ids(archive, thread_id)) < len(past)
    assert client.runs.wait(thread_id, "agent", input={"task": "third"})["log"] == [
        *state["values"]["log"],
        "prepare third",
        "work, answer none",
    ]
    assert stored(archive, other) == others


def test_deleting_threads(client: SyncLangGraphClient, archive: S3Saver) -> None:
    """Nothing of a thread is left in the bucket, however the server is asked to delete it; other threads stay."""
    left = new_thread(client, "first")
    deleted, pruned, swept = (client.threads.copy(left)["thread_id"] for _ in range(3))
    before = stored(archive, left)
    assert {thread.thread_id for thread in archive.threads()} >= {deleted, pruned, swept, left}
    client.threads.delete(deleted)
    assert client.threads.prune([pruned], strategy="delete") == {"pruned_count": 1}
    prune(client, swept, "DELETE_ALL")
    assert {thread.thread_id for thread in archive.threads()}.isdisjoint([deleted, pruned, swept])
    assert client.threads.search(ids=[deleted, pruned]) == []
    assert stored(archive, left) == before
