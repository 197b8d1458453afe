"""`put`: what a stored checkpoint says when it is read again."""

from __future__ import annotations

import asyncio
import datetime
import threading
from typing import Any

import pytest
from kit import (
    Archive,
    Background,
    GatedBucket,
    MemoryArchive,
    archive_fixture,  # noqa: F401 - a fixture
    checkpoint,
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
from langchain_core.messages import HumanMessage
from memory_saver import MemorySaver
from pydantic import BaseModel
from savers import Server, async_saver, sync_saver

from s3_saver import CheckpointConflictError
from s3_saver.bucket import Get

LARGE = "x" * 70_000


class Point(BaseModel):
    x: int


# The config that is given and the one that is returned


def test_returned_config_has_three_keys(saver: Any) -> None:
    """`put` returns thread, namespace and the new checkpoint's id, and nothing else of what it was given."""
    given = config("t", "n", "parent")
    given["configurable"] |= {"user_id": "u", "__pregel_runtime": object()}
    given["metadata"] = {"k": 1}
    stored = put(saver, id="child", under=given)
    assert stored.config == {"configurable": {"thread_id": "t", "checkpoint_ns": "n", "checkpoint_id": "child"}}


def test_namespace_may_be_missing(saver: Any) -> None:
    """A config without a namespace means the root, for writing as for reading."""
    stored = put(saver, values={"k": 1}, under=whole_thread())
    saver.put_writes(whole_thread(checkpoint_id=stored.id), [("k", 2)], "task")
    assert stored.config == config("t", "", stored.id)
    for where in (config(), whole_thread(), whole_thread(checkpoint_id=stored.id), whole_thread(checkpoint_ns=None)):
        assert found(saver, where).config == stored.config
        assert writes_at(saver, where) == [("task", "k", 2)]


def test_integer_thread_id_equals_its_text(saver: Any) -> None:
    """Thread 7 and thread "7" are one thread in every method, and it is always named by text."""
    first = put(saver, 7, values={"k": 1})
    second = put(saver, "7", values={"k": 2}, parent=first)
    saver.put_writes(config(7, "", first.id), [("k", "w")], "task")
    assert first.config["configurable"]["thread_id"] == "7"
    assert found(saver, config("7", "", first.id)).pending_writes == [("task", "k", "w")]
    assert ids(saver.list(config(7))) == ids(saver.list(config("7"))) == [second.id, first.id]
    history = saver.get_delta_channel_history(config=config(7, "", second.id), channels=["k"])
    assert history["k"]["writes"] == [("task", "k", "w")]
    saver.delete_thread(7)
    assert saver.get_tuple(config("7")) is None


@pytest.mark.parametrize("given", [{}, {"checkpoint_id": None}, {"checkpoint_id": ""}])
def test_no_parent(saver: Any, given: dict[str, Any]) -> None:
    """A checkpoint id that is missing, None or empty means that there is no parent."""
    stored = put(saver, under=config() | {"configurable": {**config()["configurable"], **given}})
    assert found(saver, stored.config).parent_config is None


def test_parent_need_not_exist(saver: Any) -> None:
    """A parent that is stored nowhere is stored as the parent all the same."""
    stored = put(saver, values={"k": 1}, under=config("t", "n", "unknown"))
    assert found(saver, stored.config).parent_config == config("t", "n", "unknown")
    assert values_at(saver, stored.config) == {"k": 1}


def test_parent_may_be_greater_than_its_child(saver: Any) -> None:
    """Ids say nothing about who is whose parent, and the newest is the greatest id even so."""
    parent = put(saver, values={"k": 1}, id="9")
    child = put(saver, parent=parent, changed=(), id="1")
    assert found(saver, child.config).parent_config == parent.config
    assert values_at(saver, child.config) == {"k": 1}
    assert found(saver, config()).config == parent.config


def test_changing_configs_changes_nothing_stored(saver: Any) -> None:
    """What a caller does to a config that it passed or got has no effect on the archive."""
    given = config("t", "", "parent")
    stored = put(saver, under=given)
    given["configurable"]["checkpoint_id"] = stored.config["configurable"]["thread_id"] = "changed"
    got = found(saver, config())
    got.config["configurable"]["checkpoint_id"] = got.parent_config["configurable"]["thread_id"] = "changed"
    again = found(saver, config())
    assert again.config == config("t", "", stored.id)
    assert again.parent_config == config("t", "", "parent")


def test_config_is_never_serialized(saver: Any) -> None:
    """Live objects in a config, which no serializer takes, are no obstacle."""
    given = config()
    given["configurable"] |= {
        "__pregel_checkpointer": saver,
        "lock": threading.Lock(),
        "checkpoint_map": {"": "root"},
        "call": lambda: None,
    }
    stored = put(saver, metadata={}, under=given)
    assert found(saver, stored.config).metadata == {}


# Metadata


def test_metadata_precedence(saver: Any) -> None:
    """The caller's metadata wins over the config's, that over the configurable; excluded and internal keys stay out."""
    given = {
        "configurable": {
            "thread_id": "t",
            "checkpoint_ns": "",
            "checkpoint_map": {},
            "langgraph_node": "n",
            "a": "configurable",
            "b": "configurable",
            "c": "configurable",
            "__pregel_task_id": "internal",
            "listed": [1],
            "mapped": {"x": 1},
            "nothing": None,
        },
        "metadata": {"a": "metadata", "b": "metadata", "langgraph_step": 3, "listed2": [1], "flag": True, "f": 1.5},
        "run_id": "top",
        "tags": ["tag"],
    }
    stored = put(saver, metadata={"a": "own", "step": -1}, under=given)
    assert found(saver, stored.config).metadata == {
        "a": "own",
        "b": "metadata",
        "c": "configurable",
        "step": -1,
        "flag": True,
        "f": 1.5,
    }


def test_nul_is_removed_from_metadata(saver: Any) -> None:
    """NUL characters are removed from strings, wherever they come from."""
    given = config()
    given["configurable"]["user"] = "a\x00b"
    stored = put(saver, metadata={"own": "\x00c"}, under=given)
    assert found(saver, stored.config).metadata == {"own": "c", "user": "ab"}


def test_metadata_of_any_type(saver: Any) -> None:
    """Metadata may hold whatever the serializer takes; tuples come back as lists."""
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    given = {
        "set": {1, 2},
        "when": when,
        "nested": {"none": None, "deep": [{"x": 1}]},
        "model": Point(x=3),
        "message": HumanMessage("hi"),
        "tuple": (1, 2),
        "bytes": b"\x00\xff",
    }
    stored = put(saver, metadata=dict(given))
    expected = {**given, "tuple": [1, 2]}
    assert found(saver, stored.config).metadata == expected
    assert next(iter(saver.list(config()))).metadata == expected


@pytest.mark.parametrize("metadata", [{}, {"step": -2}])
def test_metadata_needs_no_key(saver: Any, metadata: dict[str, Any]) -> None:
    """No metadata key is required; the stub of exit mode has a step only."""
    stored = put(saver, metadata=dict(metadata))
    assert found(saver, stored.config).metadata == metadata


def test_metadata_keys_need_not_be_text(saver: Any) -> None:
    """Keys that are no strings are metadata like others."""
    stored = put(saver, metadata={1: "one", "two": 2})  # type: ignore[dict-item]
    assert found(saver, stored.config).metadata == {1: "one", "two": 2}


def test_run_id_is_stored_only_where_the_caller_puts_it(saver: Any) -> None:
    """A run id at the config's top is not metadata; in its metadata or configurable it is."""
    top = put(saver, under={**config(), "run_id": "R"}, metadata={})
    inner = put(saver, under={**config(), "metadata": {"run_id": "R"}}, metadata={})
    configurable = config()
    configurable["configurable"]["run_id"] = "R"
    deep = put(saver, under=configurable, metadata={})
    assert [found(saver, stored.config).metadata for stored in (top, inner, deep)] == [
        {},
        {"run_id": "R"},
        {"run_id": "R"},
    ]


def test_own_thread_id_in_metadata_follows_the_thread(archive: Archive) -> None:
    """Metadata that names its own thread names the thread it is read from, so a copied object needs no rewriting."""
    saver = archive.open()
    own = put(saver, "source", metadata={"thread_id": "source", "k": 1}, id="1")
    other = put(saver, "source", metadata={"thread_id": "elsewhere"}, id="2")
    assert found(saver, own.config).metadata == {"thread_id": "source", "k": 1}
    assert found(saver, other.config).metadata == {"thread_id": "elsewhere"}
    for key in archive.keys():
        archive.write(key.replace("thread_id=source", "thread_id=target"), archive.read(key))
    assert found(saver, config("target", "", "1")).metadata == {"thread_id": "target", "k": 1}
    assert ids(saver.list(config("target"), filter={"thread_id": "target"})) == ["1"]
    assert found(saver, config("target", "", "2")).metadata == {"thread_id": "elsewhere"}


# The checkpoint's own keys


def test_every_key_comes_back(saver: Any) -> None:
    """All keys of a checkpoint come back, those of later LangGraph versions and `pending_sends` among them."""
    given = checkpoint(
        {"k": 1},
        {"k": "0001.5"},
        v=5,
        ts="any text",
        versions_seen={"node": {"k": "0001.5", "n": 3, "f": 1.5}, "empty": {}},
        updated_channels=["k", "ж"],
        pending_sends=[{"packet": 1}],
        later={"deep": [HumanMessage("hi")]},
    )
    stored = saver.put(config(), given, {}, {"k": "0001.5"})
    assert found(saver, stored).checkpoint == given
    assert next(iter(saver.list(config()))).checkpoint == given


def test_updated_channels_may_be_missing(saver: Any) -> None:
    """A checkpoint without `updated_channels` comes back without it."""
    given = checkpoint()
    del given["updated_channels"]
    stored = saver.put(config(), given, {}, {})
    assert found(saver, stored).checkpoint == given


@pytest.mark.parametrize("versions", [{"a": 1, "b": 2}, {"a": 1.5}, {"a": "0007.1"}])
def test_versions_keep_their_type(saver: Any, versions: dict[str, Any]) -> None:
    """Integers, floats and text are versions alike, and come back as they were."""
    stored = saver.put(config(), checkpoint({"a": 1}, versions), {}, versions)
    assert found(saver, stored).checkpoint["channel_versions"] == versions


def test_values_come_back(saver: Any) -> None:
    """Every value comes back equal and of its type; a tuple comes back as the serializer's list."""
    given = [None, 0, "", [], {}, b"", b"\xff", bytearray(b"x"), {"a": {1, 2}}, (1, 2), "é\x00\n", Point(x=1), 2**63]
    expected = [list(value) if isinstance(value, tuple) else value for value in given]
    stored = put(saver, values={str(number): value for number, value in enumerate(given)})
    got = values_at(saver, stored.config)
    assert list(got.values()) == expected
    assert [type(value) for value in got.values()] == [type(value) for value in expected]


def test_channel_names_of_any_kind(saver: Any) -> None:
    """Channel names may hold any characters, and be long."""
    values = {name: name for name in ("a/b", "a:b", "branch:to:n", "ж", " ", "", "..", "n" * 3000)}
    stored = put(saver, values=values)
    assert values_at(saver, stored.config) == values


# Values and versions


def test_empty_channel_has_no_key(saver: Any) -> None:
    """A channel with a new version and no value has no key on reading; a stored None has one."""
    stored = put(saver, values={"none": None}, changed=("none", "empty"))
    assert values_at(saver, stored.config) == {"none": None}
    assert set(found(saver, stored.config).checkpoint["channel_versions"]) == {"none", "empty"}


def test_emptied_channel_does_not_fall_back(saver: Any) -> None:
    """A channel that became empty does not show the value of an earlier version."""
    first = put(saver, values={"k": 1})
    second = put(saver, parent=first, changed=("k",))
    assert values_at(saver, second.config) == {}
    third = put(saver, parent=second, changed=())
    assert values_at(saver, third.config) == {}


@pytest.mark.parametrize("seen", [True, False])
def test_unchanged_channel(archive: Archive, seen: bool) -> None:
    """An unchanged channel keeps its value, whether it is passed again or not, and whoever stored it."""
    writer = archive.open()
    first = put(writer, values={"k": {"v": 1}, "large": LARGE, "other": 1})
    saver = writer if seen else archive.open()
    passed = put(saver, values={"k": {"v": 1}, "large": LARGE, "other": 2}, parent=first, changed=("other",))
    left_out = put(saver, values={"other": 3}, parent=passed, changed=("other",))
    assert values_at(saver, passed.config) == {"k": {"v": 1}, "large": LARGE, "other": 2}
    assert values_at(archive.open(), left_out.config) == {"k": {"v": 1}, "large": LARGE, "other": 3}


def test_unchanged_channel_is_not_read_from_the_caller(saver: Any) -> None:
    """What an unchanged channel's object has become since is not stored: the value of its version is."""
    first = put(saver, values={"barrier": {"a"}, "n": 1})
    second = put(saver, values={"barrier": {"a", "b"}, "n": 2}, parent=first, changed=("n",))
    assert values_at(saver, second.config) == {"barrier": {"a"}, "n": 2}


def test_unchanged_channel_whose_parent_is_gone(archive: Archive) -> None:
    """A value that is passed is stored even where the checkpoint that held it was removed."""
    first = put(archive.open(), values={"k": 1, "large": LARGE})
    for key in archive.keys():
        archive.remove(key)
    second = put(archive.open(), values={"k": 1, "large": LARGE}, parent=first, changed=())
    assert values_at(archive.open(), second.config) == {"k": 1, "large": LARGE}


def test_version_alone_brings_the_value(archive: Archive) -> None:
    """A channel that is only in `channel_versions` has the value stored under that version, for generations."""
    saver = archive.open()
    first = put(saver, values={"dropped": [1], "large": LARGE, "n": 0})
    second = put(saver, values={"n": 1}, parent=first, changed=("n",))
    third = put(archive.open(), values={"n": 2}, parent=second, changed=("n",))
    assert values_at(saver, third.config) == {"dropped": [1], "large": LARGE, "n": 2}
    assert next(iter(saver.list(config()))).checkpoint["channel_values"] == {"dropped": [1], "large": LARGE, "n": 2}


def test_version_must_be_the_stored_one(saver: Any) -> None:
    """A channel with another version than its parent's has no value, unless one is passed."""
    first = put(saver, values={"k": 1})
    given = checkpoint({}, {"k": saver.get_next_version(first.versions["k"], None)})
    stored = saver.put(first.config, given, {}, {})
    assert values_at(saver, stored) == {}


def test_changed_channel_with_its_parents_version(saver: Any) -> None:
    """A channel that is said to have changed is what `put` was given, though its version is its parent's."""
    first = put(saver, values={"k": 1, "gone": 1, "large": LARGE})
    new = {"k": first.versions["k"], "gone": first.versions["gone"]}
    stored = saver.put(first.config, checkpoint({"k": 2}, first.versions), {}, new)
    assert values_at(saver, stored) == {"k": 2, "large": LARGE}


def test_value_that_was_never_stored(saver: Any) -> None:
    """A value that is passed as unchanged but was never stored is stored now."""
    stored = saver.put(config(), checkpoint({"k": 1, "large": LARGE}, {"k": 1, "large": 1}), {}, {})
    assert values_at(saver, stored) == {"k": 1, "large": LARGE}


def test_copy_under_another_parent(saver: Any) -> None:
    """A copy that is put beside its original, with nothing changed, holds what the original holds."""
    first = put(saver, values={"k": 1, "gone": "g"})
    second = put(saver, values={"k": 2}, parent=first, changed=("k",))
    copied = saver.put(first.config, checkpoint({"k": 2, "gone": "g"}, second.versions), {"source": "fork"}, {})
    assert values_at(saver, copied) == {"k": 2, "gone": "g"}
    assert found(saver, copied).parent_config == first.config


def test_removed_channel_does_not_come_back(saver: Any) -> None:
    """A channel in neither the versions nor the values is gone."""
    first = put(saver, values={"a": 1, "b": 2})
    stored = saver.put(first.config, checkpoint({"a": 1}, {"a": first.versions["a"]}), {}, {})
    assert values_at(saver, stored) == {"a": 1}
    assert found(saver, stored).checkpoint["channel_versions"] == {"a": first.versions["a"]}


def test_forks_with_equal_versions_do_not_mix(archive: Archive) -> None:
    """Two branches that gave one version to different values each keep their own."""
    saver = archive.open()
    root = saver.put(config(), checkpoint({"k": "root"}, {"k": 1}, id="0"), {}, {"k": 1})
    for name, value in (("1a", "left"), ("1b", "right")):
        branch = saver.put(root, checkpoint({"k": value}, {"k": 2}, id=name), {}, {"k": 2})
        archive.open().put(branch, checkpoint({}, {"k": 2}, id=f"2{name}"), {}, {})
    assert {name: values_at(saver, config("t", "", name))["k"] for name in ("1a", "1b", "21a", "21b")} == {
        "1a": "left",
        "1b": "right",
        "21a": "left",
        "21b": "right",
    }


def test_old_history_survives_forks(saver: Any) -> None:
    """Forking twice from one checkpoint leaves everything older as it was."""
    first = put(saver, values={"k": 1})
    second = put(saver, values={"k": 2}, parent=first)
    saver.put_writes(second.config, [("k", 3)], "task", "~p")
    before = [found(saver, stored.config) for stored in (first, second)]
    forks = [put(saver, values={"k": value}, parent=second) for value in ("a", "b")]
    put(saver, values={"k": "c"}, parent=forks[0])
    assert [found(saver, stored.config) for stored in (first, second)] == before
    assert [values_at(saver, fork.config) for fork in forks] == [{"k": "a"}, {"k": "b"}]


# The same id again


@on_a_real_server
def test_same_content_again_is_success(archive: Archive) -> None:
    """Putting the same checkpoint again succeeds, from this process and another, and stores it once."""
    saver = archive.open()
    parent = put(saver, values={"old": LARGE})
    given = checkpoint({"k": {3, 1, 2}, "large": LARGE, "old": LARGE}, {"k": "1", "large": "1", **parent.versions})
    arguments = parent.config, given, {"step": 1, "s": {1, 2}, "run_id": "R"}, {"k": "1", "large": "1"}
    first = saver.put(*arguments)
    saver.put_writes(first, [("k", 1)], "task")
    assert saver.put(*arguments) == first
    assert archive.open().put(*arguments) == first
    assert ids(saver.list(config())) == [given["id"], parent.id]
    assert writes_at(saver, first) == [("task", "k", 1)]
    assert values_at(saver, first) == given["channel_values"]


# What differs from the checkpoint that is stored.
OTHERS: dict[str, dict[str, Any]] = {
    "metadata": {"metadata": {"step": 2}},
    "a value": {"values": {"k": 2, "large": LARGE}},
    "a large value": {"values": {"k": 1, "large": LARGE + "y"}},
    "a channel": {"values": {"k": 1}},
    "the parent": {"under": config("t", "", "another")},
    "the versions": {"channel_versions": {"k": "1", "large": "2"}},
    "the versions seen": {"versions_seen": {"node": {"k": "2"}}},
    "the time": {"ts": "later"},
    "another key": {"later": 1},
}


@on_a_real_server
def test_other_content_is_a_conflict(archive: Archive) -> None:
    """Putting other content under a stored id raises, and changes nothing."""
    same: dict[str, Any] = {
        "values": {"k": 1, "large": LARGE},
        "metadata": {"step": 1},
        "id": "1",
        "channel_versions": {"k": "1", "large": "1"},
    }
    saver, other_process = archive.open(), archive.open()
    stored = put(saver, **same)
    saver.put_writes(stored.config, [("k", 1)], "task")
    before = found(saver, stored.config)
    for what, other in OTHERS.items():
        with pytest.raises(CheckpointConflictError, match="'1' of thread 't'"):
            put(other_process, **(same | other))
            pytest.fail(f"no conflict where {what} differs")
    assert found(archive.open(), stored.config) == before
    assert ids(saver.list(config())) == ["1"]
    put(other_process, **same)


# When the values are read


def test_values_are_read_before_the_first_wait() -> None:
    """A caller that changes its objects while `put` waits for the store changes nothing that is stored."""
    bucket = GatedBucket(holds=lambda request: isinstance(request, Get))
    archive = MemoryArchive(bucket=bucket)
    first = put(MemorySaver(), values={"same": 1})
    log, metadata, seen = ["old"], {"m": ["old"]}, {"node": {"log": "1"}}
    # The parent is not in memory, so the put reads it first.
    call = Background(
        lambda: put(archive.open(), values={"log": log}, parent=first, id="9", metadata=metadata, versions_seen=seen)
    )
    assert bucket.reached.wait(5)
    log.append("new")
    metadata["m"].append("new")
    seen["node"]["log"] = "2"
    bucket.release()
    stored = call.result()
    got = found(archive.open(), stored.config)
    assert got.checkpoint["channel_values"] == {"log": ["old"]}
    assert got.metadata == {"m": ["old"]}
    assert got.checkpoint["versions_seen"] == {"node": {"log": "1"}}


@pytest.mark.parametrize("colour", ["sync saver", "async saver"])
async def test_values_are_read_before_the_first_await(moto_server: Server, prefix: str, colour: str) -> None:
    """The async methods, too, store what the objects were when they were called."""

    async def check(saver: Any) -> None:
        log, writes = ["old"], [("log", ["old"])]
        stored = checkpoint({"log": log}, {"log": "1"})
        putting = asyncio.create_task(saver.aput(config(), stored, {}, {"log": "1"}))
        writing = asyncio.create_task(saver.aput_writes(config("t", "", stored["id"]), writes, "task"))
        await asyncio.sleep(0)
        log.append("new")
        writes[0][1].append("new")
        stored["channel_versions"]["log"] = "2"
        await putting
        await writing
        got = await saver.aget_tuple(config())
        assert got.checkpoint["channel_values"] == {"log": ["old"]}
        assert got.checkpoint["channel_versions"] == {"log": "1"}
        assert got.pending_writes == [("task", "log", ["old"])]

    if colour == "sync saver":
        with sync_saver(moto_server, prefix) as saver:
            await check(saver)
    else:
        async with async_saver(moto_server, prefix) as saver:
            await check(saver)
