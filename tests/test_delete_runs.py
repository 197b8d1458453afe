"""`delete_for_runs`: the checkpoints of runs go, wherever they are, but none that a survivor needs."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict
from uuid import uuid4

import pytest
from kit import (
    Archive,
    FailingBucket,
    MemoryArchive,
    Put,
    archive_fixture,  # noqa: F401 - a fixture
    config,
    found,
    ids,
    kind_fixture,  # noqa: F401 - a fixture
    loop_fixture,  # noqa: F401 - a fixture
    on_a_real_server,
    put,
    saver_fixture,  # noqa: F401 - a fixture
    values_at,
    whole_thread,
    writes_at,
)
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph

from manifests.keys import hash_of
from s3_saver.errors import DeletionError, StoreUnavailableError, ThreadBusyError

LARGE = "x" * 70_000


def of(run: Any) -> dict[str, Any]:
    return {"source": "loop", "step": 1, "run_id": run}


def runs_at(saver: Any, thread_id: str) -> list[tuple[str, Any]]:
    """Each checkpoint of the thread with its run, newest first."""
    listed = saver.list(whole_thread(thread_id))
    return [(item.checkpoint["id"], item.metadata.get("run_id")) for item in listed]


@on_a_real_server
def test_runs_go_in_all_threads(archive: Archive) -> None:
    """All checkpoints of the runs go with their writes, in all threads and namespaces; the others stay as they are."""
    saver = archive.open()
    for thread_id in ("a", "b/ü", "c" * 900):
        one = put(saver, thread_id, id="1", values={"k": 1}, metadata=of("keep"))
        two = put(saver, thread_id, id="2", parent=one, values={"k": 2}, metadata=of("gone 1"))
        put(saver, thread_id, id="3", parent=two, values={"k": 3}, metadata=of("gone 2"))
        put(saver, thread_id, id="1", namespace="n:1", metadata=of("gone 1"))
        put(saver, thread_id, id="4", namespace="n:1", metadata={"step": 1})
        for stored in (one, two):
            saver.put_writes(stored.config, [("k", stored.id)], "task")
    archive.open().delete_for_runs(["gone 1", "unknown", "gone 2", "gone 1"])
    for reader in (saver, archive.open()):
        for thread_id in ("a", "b/ü", "c" * 900):
            assert runs_at(reader, thread_id) == [("4", None), ("1", "keep")]
            assert writes_at(reader, config(thread_id)) == [("task", "k", "1")]
    assert len(archive.keys_of("writes")) == 3


def test_nothing_to_delete(archive: Archive) -> None:
    """No runs, and runs that nobody knows, are no error and change nothing."""
    saver = archive.open()
    saver.delete_for_runs([])
    saver.delete_for_runs(["unknown"])
    put(saver, metadata=of("r"))
    put(saver, "t2", metadata={"other": "unknown"})
    stored = archive.keys()
    saver.delete_for_runs([])
    saver.delete_for_runs(("unknown", ""))
    assert archive.keys() == stored


@pytest.mark.parametrize("runs", ["run", b"run", None, 7])
def test_one_string_is_refused(saver: Any, runs: Any) -> None:
    """A string alone would be taken letter by letter, so it is refused, before anything is touched."""
    put(saver, metadata=of("r"))
    with pytest.raises(TypeError, match="run_ids"):
        saver.delete_for_runs(runs)
    assert len(list(saver.list(None))) == 1


@pytest.mark.parametrize("runs", [["r", 7], ["r", None], ["r", uuid4()], ["\ud800"]])
def test_what_is_no_run_is_refused(saver: Any, runs: Any) -> None:
    """An id that is no text is refused by the argument's name, before anything is touched."""
    put(saver, metadata=of("r"))
    with pytest.raises((TypeError, ValueError), match="run_ids"):
        saver.delete_for_runs(runs)
    assert len(list(saver.list(None))) == 1


@pytest.mark.parametrize("run", ["a/b", "..", ".", "~", "ü ~%2F", "run_id=x", "r" * 199, "r" * 201, "ü" * 900, " "])
def test_odd_runs(run: str) -> None:
    """Run ids may hold any characters, and be longer than a key."""
    archive = MemoryArchive()
    saver = archive.open()
    put(saver, id="1", metadata=of(run))
    put(saver, id="2", metadata=of(run + "x"))
    archive.open().delete_for_runs([run])
    assert runs_at(saver, "t") == [("2", run + "x")]


def test_run_of_the_config() -> None:
    """The run counts that metadata names, whether the caller's metadata or the config brought it there."""
    archive = MemoryArchive()
    saver = archive.open()
    under = {**config(), "metadata": {"run_id": "from metadata"}, "run_id": uuid4()}
    put(saver, id="1", under=under)
    put(saver, id="2", under={"configurable": {"thread_id": "t", "run_id": "from configurable"}})
    put(saver, id="3", under={**config(), "run_id": uuid4()})
    assert runs_at(saver, "t") == [("3", None), ("2", "from configurable"), ("1", "from metadata")]
    saver.delete_for_runs(["from configurable", "from metadata", str(under["run_id"])])
    assert ids(saver.list(config())) == ["3"]


def test_survivors_keep_their_parents_name() -> None:
    """A survivor's parent is named as before, although it is gone; its values, small and large, are its own."""
    archive = MemoryArchive()
    saver = archive.open()
    first = put(saver, id="1", values={"k": 1, "large": LARGE}, metadata=of("gone"))
    put(saver, id="2", parent=first, values={"k": 1, "large": LARGE}, changed=(), metadata=of("kept"))
    archive.open().delete_for_runs(["gone"])
    for reader in (saver, archive.open()):
        item = found(reader, config())
        assert item.parent_config == first.config
        assert reader.get_tuple(first.config) is None
        assert values_at(reader, config()) == {"k": 1, "large": LARGE}
    archive.bucket.clock_ms += 4_000_000
    archive.open().prune(["t"])
    assert values_at(archive.open(), config()) == {"k": 1, "large": LARGE}


def test_writes_on_other_runs_stay() -> None:
    """What a deleted run wrote onto another run's checkpoint stays there."""
    saver = MemoryArchive().open()
    first = put(saver, id="1", metadata=of("kept"))
    saver.put_writes(first.config, [("k", "by the run that goes")], "task")
    put(saver, id="2", parent=first, metadata=of("gone"))
    saver.delete_for_runs(["gone"])
    assert writes_at(saver, config()) == [("task", "k", "by the run that goes")]


def test_thread_of_nothing_else_is_gone() -> None:
    """A thread whose checkpoints all go is not there any more, and the run may write to it again."""
    archive = MemoryArchive()
    saver = archive.open()
    put(saver, id="1", metadata=of("r"))
    saver.delete_for_runs(["r"])
    assert list(saver.list(None)) == list(saver.threads()) == []
    put(saver, id="2", metadata=of("r"))
    archive.open().delete_for_runs(["r"])
    assert list(saver.list(None)) == []


# Delta channels


def extend(state: list[str], batches: list[list[str]]) -> list[str]:
    return [*state, *(item for batch in batches for item in batch)]


class Log(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(extend, list, snapshot_frequency=100)]
    turn: Annotated[int, operator.add]


def turns(archive: MemoryArchive, thread_id: str, *runs: str) -> Any:
    builder: Any = StateGraph(Log)
    builder.add_node("work", lambda state: {"log": [f"turn {state.get('turn', 0)}"], "turn": 1})
    builder.add_edge(START, "work")
    graph = builder.compile(checkpointer=archive.open())
    for run in runs:
        graph.invoke({"log": [run]}, {**config(thread_id), "metadata": {"run_id": run}})
    return graph


def test_run_that_a_survivor_needs_is_refused() -> None:
    """A thread whose newest survivor needs the run for a delta channel is left whole; other threads are done."""
    archive = MemoryArchive()
    graph = turns(archive, "busy", "early", "late")
    plain = put(archive.open(), "plain", id="1", metadata=of("early"))
    turns(archive, "alone", "early")
    stored = {key: archive.read(key) for key in archive.keys_of("checkpoint") if "thread_id=busy" in key}
    state = graph.get_state(config("busy"))
    with pytest.raises(ThreadBusyError, match="busy"):
        archive.open().delete_for_runs(["early"])
    assert {key: archive.read(key) for key in archive.keys_of("checkpoint")} == stored
    assert graph.get_state(config("busy")) == state
    assert archive.open().get_tuple(plain.config) is None
    # Both together can go.
    archive.open().delete_for_runs(["early", "late"])
    assert archive.keys_of("checkpoint") == []


def test_newest_run_can_be_rolled_back() -> None:
    """Rolling back the newest run is never refused, and the state is as it was before that run."""
    archive = MemoryArchive()
    graph = turns(archive, "t", "one")
    before = graph.get_state(config())
    turns(archive, "t", "two", "three")
    for run in ("three", "two"):
        archive.open().delete_for_runs([run])
    assert graph.get_state(config()) == before
    assert before.values["log"] == ["one", "turn 0"]
    assert graph.invoke({"log": ["again"]}, config())["log"] == ["one", "turn 0", "again", "turn 1"]


def test_snapshot_frees_elder_runs() -> None:
    """A run before the survivor's snapshot is not needed."""
    archive = MemoryArchive()
    saver = archive.open()
    counted = {"counters_since_delta_snapshot": {"log": [1, 1]}}
    last: Put | None = None
    for number, run in enumerate(["a", "b", "c", "d"]):
        values = {"log": _DeltaSnapshot([number])} if run == "c" else {}
        metadata = of(run) | ({} if values else counted)
        last = put(saver, id=str(number), parent=last, values=values, changed=("log",), metadata=metadata)
        saver.put_writes(last.config, [("log", number)], "task")
    saver.delete_for_runs(["a", "b"])
    assert [run for _, run in runs_at(saver, "t")] == ["d", "c"]
    with pytest.raises(ThreadBusyError):
        saver.delete_for_runs(["c"])


# Where metadata is encrypted


@pytest.fixture(name="serde")
def serde_fixture() -> EncryptedSerializer:
    return EncryptedSerializer.from_pycryptodome_aes(key=b"0123456789abcdef")


def test_encrypted_runs(serde: EncryptedSerializer) -> None:
    """Where metadata is encrypted the run's id is in no object and no key, and yet it is found."""
    archive = MemoryArchive()
    saver = archive.open(serde=serde)
    put(saver, id="1", metadata=of("secret run"))
    put(saver, id="2", metadata=of("other"))
    assert "secret" not in " ".join(archive.keys())
    assert not any(b"secret" in archive.read(key) for key in archive.keys_of("marker"))
    assert f"runs/run_id={hash_of('secret run')}/t" in archive.keys_of("marker")
    archive.open(serde=serde).delete_for_runs(["secret run"])
    assert runs_at(saver, "t") == [("2", "other")]


def test_mixed_archive(serde: EncryptedSerializer) -> None:
    """A run that wrote plain and encrypted metadata is found in both."""
    archive = MemoryArchive()
    put(archive.open(), "plain", id="1", metadata=of("r"))
    put(archive.open(serde=serde), "encrypted", id="1", metadata=of("r"))
    archive.open(serde=serde).delete_for_runs(["r"])
    assert archive.keys_of("checkpoint") == []


# What goes wrong


def test_locked_keys_are_reported() -> None:
    """Locked checkpoints are reported by key and stay whole; the rest is done."""
    archive = MemoryArchive()
    saver = archive.open()
    for thread_id in ("a", "b"):
        stored = put(saver, thread_id, id="1", values={"large": LARGE}, metadata=of("r"))
        saver.put_writes(stored.config, [("k", 1)], "task")
    locked = archive.layout.checkpoint("a", "", "1")
    archive.bucket.locked.add(locked)
    with pytest.raises(DeletionError) as raised:
        saver.delete_for_runs(["r"])
    assert raised.value.failed.keys() == {locked}
    assert archive.keys_of("checkpoint") == [locked]
    assert writes_at(archive.open(), config("a")) == [("task", "k", 1)]
    archive.bucket.locked.clear()
    archive.open().delete_for_runs(["r"])
    assert archive.keys_of("checkpoint") == archive.keys_of("writes") == []


@pytest.mark.parametrize("after", [False, True])
def test_killed_deletion_is_finished_by_the_next(after: bool) -> None:
    """A deletion that fails at any request leaves whole checkpoints only, and the next one finishes it."""
    for number in range(60):
        bucket = FailingBucket()
        archive = MemoryArchive(bucket=bucket)
        saver = archive.open()
        for thread_id in ("a", "b"):
            last = put(saver, thread_id, id="0", values={"k": 0, "large": LARGE}, metadata=of("kept"))
            for name in "1234":
                last = put(saver, thread_id, id=name, parent=last, values={"k": name}, metadata=of("r"))
                saver.put_writes(last.config, [("k", name)], "task")
        bucket.arm(number, after=after)
        try:
            archive.open().delete_for_runs(["r"])
        except StoreUnavailableError:
            pass
        else:
            assert number > 8
            return
        bucket.arm(None)
        for item in archive.open().list(None):
            name = item.checkpoint["id"]
            assert item.pending_writes == ([("task", "k", name)] if name != "0" else [])
        archive.open().delete_for_runs(["r"])
        assert runs_at(archive.open(), "a") == runs_at(archive.open(), "b") == [("0", "kept")]
        assert archive.keys_of("writes") == []
    pytest.fail("the deletion never ended")
