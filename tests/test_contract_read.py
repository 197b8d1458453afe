"""`get_tuple`, versions and serializers: what a saver finds, and how it decodes it."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
from kit import (
    Archive,
    archive_fixture,  # noqa: F401 - a fixture
    checkpoint,
    config,
    found,
    id_of,
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
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from memory_saver import MemorySaver
from pydantic import BaseModel
from savers import Server, async_saver, boto3_client

from s3_saver import AsyncS3Saver, S3Saver
from s3_saver.bucket import Deadline, Instant, Late, Put

THREADS = ["a", "a/b", "a|b", "a%2Fb", "A", "", " ", "..", "é", "e\u0301", "🙂", "n" * 900]
NAMESPACES = ["", "~", "n", "n:1", "n:1|m:2", "n/1", "N", "..", "__default__", "é", "n:" + "1" * 300]


class Color(BaseModel):
    name: str


# What is found


def test_unknown_is_none(saver: Any) -> None:
    """An unknown thread, namespace or id is None, never an error."""
    put(saver, namespace="n", id="1")
    for where in (config("unknown"), config(), config("t", "n", "2"), config("t", "", "1"), config("t", "n:1")):
        assert saver.get_tuple(where) is None
        assert saver.get(where) is None


@on_a_real_server
def test_newest_is_the_greatest_id(archive: Archive) -> None:
    """Without an id the greatest one is found, as text, whatever the order of puts and whoever is whose parent."""
    saver = archive.open()
    assert saver.get_tuple(config()) is None
    newest = ""
    for name in ("5", "10", "9", "é", "z", "~", "A", "9a", "🙂", "ж"):
        put(saver, id=name)
        newest = max(newest, name)
        assert id_of(found(saver, config())) == newest
    assert ids(saver.list(config())) == ["🙂", "ж", "é", "~", "z", "A", "9a", "9", "5", "10"]


def test_given_id_is_found(saver: Any) -> None:
    """An id names exactly its checkpoint; None and an empty id mean the newest."""
    first, second = put(saver, id="1", values={"k": 1}), put(saver, id="2", values={"k": 2})
    assert values_at(saver, first.config) == {"k": 1}
    for empty in (None, ""):
        assert found(saver, whole_thread(checkpoint_id=empty)).config == second.config


@on_a_real_server
def test_threads_are_isolated(archive: Archive) -> None:
    """Whatever characters thread ids hold, each thread reads its own, and deleting one leaves the others."""
    saver = archive.open()
    for name in THREADS:
        put(saver, name, values={"name": name})
        saver.put_writes(found(saver, config(name)).config, [("name", name)], "task")
    assert [values_at(saver, config(name)) for name in THREADS] == [{"name": name} for name in THREADS]
    everything = {item.config["configurable"]["thread_id"] for item in saver.list(None)}
    assert everything == set(THREADS)
    for number, name in enumerate(THREADS):
        saver.delete_thread(name)
        assert saver.get_tuple(config(name)) is None
        left = THREADS[number + 1 :]
        if number % 4 == 3:  # each check reads all that is left
            assert [writes_at(saver, config(other)) for other in left] == [[("task", "name", x)] for x in left]


@on_a_real_server
def test_namespaces_do_not_mix(archive: Archive) -> None:
    """Whatever characters namespaces hold, each has its own checkpoints, under its exact name."""
    saver = archive.open()
    for number, name in enumerate(NAMESPACES):
        put(saver, namespace=name, values={"n": number}, id=str(number))
    for number, name in enumerate(NAMESPACES):
        item = found(saver, config("t", name))
        assert item.checkpoint["channel_values"] == {"n": number}
        assert item.config == config("t", name, str(number))
        assert list(saver.list(config("t", name))) == [item]
    names = [item.config["configurable"]["checkpoint_ns"] for item in saver.list(whole_thread())]
    assert sorted(names) == sorted(NAMESPACES)


@on_a_real_server
def test_longest_names(archive: Archive) -> None:
    """A key of the longest id, namespace and thread id that are allowed is stored and read; ids may hold anything."""
    saver = archive.open()
    for name in ("i" * 84, "%" * 28, "é" * 14, "/" * 28, " "):
        stored = put(saver, "é" * 500, namespace="ж" * 500, id=name, values={"k": name})
        saver.put_writes(stored.config, [("k", name)], "task")
        assert values_at(saver, stored.config) == {"k": name}
        assert writes_at(saver, stored.config) == [("task", "k", name)]
        assert id_of(found(saver, stored.config)) == name


# What a tuple holds


def test_configs_are_new(saver: Any) -> None:
    """The tuple's config has three keys, not those of the caller's config, and `get` gives the checkpoint alone."""
    first = put(saver, namespace="n")
    second = put(saver, namespace="n", parent=first)
    given = second.config | {"configurable": {**second.config["configurable"], "user": "u"}}
    item = found(saver, given)
    assert item.config == second.config
    assert item.config is not given
    assert item.parent_config == first.config
    assert saver.get(given) == item.checkpoint


def test_every_read_gives_fresh_objects(archive: Archive) -> None:
    """What a caller does to a tuple has no effect on the next read, in the saver that stored it or another."""
    writer = archive.open()
    values = {"list": [[1]], "message": HumanMessage("hi")}
    stored = put(writer, values=values, metadata={"deep": [1]}, pending_sends=[1], versions_seen={"n": {"k": "1"}})
    writer.put_writes(stored.config, [("x", [1])], "task")
    for saver in (writer, archive.open()):
        expected = copy.deepcopy(found(saver, config()))
        for read in (lambda s: found(s, config()), lambda s: next(iter(s.list(config())))):
            item = read(saver)  # type: ignore[no-untyped-call]
            item.checkpoint["channel_values"]["list"][0].append(2)
            item.checkpoint["channel_values"]["message"].content = "changed"
            item.checkpoint["channel_versions"]["list"] = "changed"
            item.checkpoint["versions_seen"]["n"]["k"] = "changed"
            item.checkpoint.pop("pending_sends")
            item.metadata["deep"].append(2)
            item.pending_writes[0][2].append(2)
            assert found(saver, config()) == expected


# Checkpoints from before format 4


def old_threads(saver: Any) -> tuple[Any, Any]:
    """A parent with sends among its writes, and its child of format 3."""
    parent = put(saver, v=3, values={"k": 1}, id="1")
    saver.put_writes(parent.config, [("__pregel_tasks", "b"), ("k", 2)], "task2", "~2")
    saver.put_writes(parent.config, [("__pregel_tasks", "a"), ("__pregel_tasks", "a2")], "task1", "~1")
    return parent, put(saver, v=3, values={"k": 2}, parent=parent, id="2")


def test_old_sends_become_a_channel(saver: Any) -> None:
    """A checkpoint of a format below 4 finds its parent's sends in a channel with the highest version."""
    parent, child = old_threads(saver)
    for item in (found(saver, child.config), found(saver, config()), next(iter(saver.list(config())))):
        assert item.checkpoint["channel_values"] == {"k": 2, "__pregel_tasks": ["a", "a2", "b"]}
        versions = item.checkpoint["channel_versions"]
        assert versions["__pregel_tasks"] == versions["k"] == child.versions["k"]
    assert values_at(saver, parent.config) == {"k": 1}
    assert next(iter(saver.list(parent.config))).checkpoint["channel_values"] == {"k": 1}


def test_old_sends_of_a_checkpoint_without_versions(saver: Any) -> None:
    """Where an old checkpoint has no versions, the sends get a first one."""
    parent, _ = old_threads(saver)
    child = put(saver, v=1, parent=parent, channel_versions={}, id="3")
    assert values_at(saver, child.config) == {"__pregel_tasks": ["a", "a2", "b"]}
    assert found(saver, child.config).checkpoint["channel_versions"]["__pregel_tasks"] > ""


def test_new_formats_keep_sends_where_they_are(saver: Any) -> None:
    """From format 4 on, sends among the parent's writes stay there."""
    parent, _ = old_threads(saver)
    child = put(saver, v=4, parent=parent, values={"k": 3}, id="3")
    assert values_at(saver, child.config) == {"k": 3}


def test_old_parent_without_sends_or_without_itself(saver: Any) -> None:
    """An old checkpoint whose parent is not stored, or sent nothing, has no such channel."""
    orphan = put(saver, v=3, values={"k": 1}, under=config("t", "", "unknown"))
    child = put(saver, v=3, values={"k": 1}, parent=orphan)
    assert values_at(saver, orphan.config) == values_at(saver, child.config) == {"k": 1}


# Versions


@pytest.mark.parametrize("current", [None, 0, 7, 7.0, "7", "7.5", f"{7:032}.0.5", f"{7:032}.{0.25:016}"])
def test_next_version_is_greater(current: Any) -> None:
    """The next version is text whose number is one more, whatever saver made the current one."""
    following = MemorySaver().get_next_version(current, None)
    assert isinstance(following, str)
    number, _, fraction = following.partition(".")
    assert number == f"{0 if current is None else int(str(current).split('.')[0]) + 0:032}"[:-1] + str(
        1 if current in (None, 0) else 8
    )
    assert fraction
    if isinstance(current, str) and len(current) > 30:
        assert following > current


def test_versions_grow_as_text() -> None:
    """Ten thousand versions in a row grow as text, and two forks never get the same one."""
    saver = MemorySaver()
    versions = [saver.get_next_version(None, None)]
    for _ in range(10_000):
        versions.append(saver.get_next_version(versions[-1], None))
    assert versions == sorted(set(versions))
    assert len({saver.get_next_version(versions[-1], None) for _ in range(1000)}) == 1000
    assert saver.driver.rounds == []


# Serializers


def test_serializer_may_be_assigned_later(archive: Archive) -> None:
    """A serializer that is assigned after the saver was made serves values, writes and metadata from then on."""

    class Tagged(JsonPlusSerializer):
        def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
            kind, data = super().dumps_typed(obj)
            return f"tagged {kind}", data[::-1]

        def loads_typed(self, data: tuple[str, bytes]) -> Any:
            kind, body = data
            return super().loads_typed((kind.removeprefix("tagged "), body[::-1] if "tagged" in kind else body))

    saver = archive.open()
    plain = put(saver, values={"k": [1]}, metadata={"m": 1})
    saver.serde = Tagged()
    tagged = put(saver, values={"k": [2]}, metadata={"m": 2})
    saver.put_writes(tagged.config, [("k", [3])], "task")
    for reader in (saver, archive.open(serde=Tagged())):
        item = found(reader, tagged.config)
        assert (item.checkpoint["channel_values"], item.metadata) == ({"k": [2]}, {"m": 2})
        assert item.pending_writes == [("task", "k", [3])]
        assert values_at(reader, plain.config) == {"k": [1]}
    with pytest.raises(NotImplementedError, match="tagged"):
        archive.open().get_tuple(tagged.config)


def test_delta_snapshot_comes_back(saver: Any) -> None:
    """A delta channel's snapshot of a list, a dict, messages or None comes back as a snapshot."""
    given = [[1, 2], {"a": {"b": None}}, [HumanMessage("hi", id="1"), AIMessage("ho", id="2")], None, "x" * 100_000]
    values = {str(number): _DeltaSnapshot(value) for number, value in enumerate(given)}
    stored = put(saver, values=values)
    got = values_at(saver, stored.config)
    assert got == values
    assert all(isinstance(value, _DeltaSnapshot) for value in got.values())


STRICT = JsonPlusSerializer(allowed_msgpack_modules=None)
ALLOWED = [(Color.__module__, "Color")]


def test_allowlist_decodes_more(archive: Archive) -> None:
    """A clone with an allowlist decodes the types on it; the original, which shares the rest, does not."""
    saver = archive.open(serde=STRICT)
    clone = saver.with_allowlist(ALLOWED)
    assert type(clone) is type(saver)
    stored = put(clone, values={"k": Color(name="red")})
    clone.put_writes(stored.config, [("k", Color(name="blue"))], "task")
    for _ in range(2):  # whatever is remembered of one read must not reach the other
        assert values_at(saver, stored.config) == {"k": {"name": "red"}}
        assert writes_at(saver, stored.config) == [("task", "k", {"name": "blue"})]
        assert values_at(clone, stored.config) == {"k": Color(name="red")}
        assert writes_at(clone, stored.config) == [("task", "k", Color(name="blue"))]
    with pytest.raises(Exception):  # noqa: B017, PT011 - only to see that no error is left behind by a clone
        saver.get_tuple({})
    assert values_at(saver, stored.config) == {"k": {"name": "red"}}


def test_same_serializer_is_no_clone() -> None:
    """Where an allowlist changes nothing, the saver itself is returned."""
    saver = MemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=True))
    assert saver.with_allowlist(ALLOWED) is saver


def check_clones(saver: Any, close: Callable[[Any], Any], count: int) -> None:
    """Closing and collecting clones leaves the original, and other clones, usable; many clones are cheap."""
    kept = saver.with_allowlist(ALLOWED)
    for number in range(count):
        clone = saver.with_allowlist([*ALLOWED, ("module", f"Class{number}")])
        if number % 10 == 0:
            close(clone)
    del clone
    gc.collect()
    stored = put(kept, values={"k": Color(name="red")})
    assert values_at(kept, stored.config) == {"k": Color(name="red")}
    assert values_at(saver, stored.config) == {"k": {"name": "red"}}


def test_clones_close_nothing(archive: Archive) -> None:
    """Closing and collecting clones leaves the original and other clones usable; a thousand of them cost little."""
    check_clones(archive.open(serde=STRICT), lambda clone: clone.close(), 1000 if archive.prefix == "" else 20)


def test_clone_made_before_the_client(moto_server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone that was made before the first request shares the client that is made at it, and its end."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", moto_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", moto_server.secret_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto_server.endpoint_url)
    for cls in (S3Saver, AsyncS3Saver):
        saver = cls(moto_server.bucket, prefix=prefix, serde=STRICT)
        check_clones(saver, lambda clone: clone.close(), 20)
        clone = saver.with_allowlist(ALLOWED)
        saver.close()
        with pytest.raises(Exception, match="closed"):
            clone.get_tuple(config())


def test_injected_client_stays_open(moto_server: Server, prefix: str) -> None:
    """Closing a saver leaves the caller's client open, and other savers on it as they were."""
    client = boto3_client(moto_server)
    one = S3Saver(moto_server.bucket, prefix=prefix, client=client)
    other = S3Saver(moto_server.bucket, prefix=prefix, client=client)
    put(one)
    put(other, id="0")
    one.close()
    one.close()

    async def late() -> Any:
        return await Put("never", b"x", deadline=Deadline(Instant(0, 0, 0), 0))

    # The check of deadlines, which each saver adds to the client, is still there for the other one.
    assert isinstance(other._driver.run(late()), Late)
    assert client.list_objects_v2(Bucket=moto_server.bucket, Prefix=prefix)["KeyCount"] == 2
    assert len(list(other.list(config()))) == 2
    other.close()


async def test_injected_async_client_stays_open(moto_server: Server, prefix: str) -> None:
    """Closing an async saver leaves the caller's client open."""
    async with async_saver(moto_server, prefix) as saver:
        await saver.aput(config(), checkpoint(id="1"), {}, {})
        client = saver._driver._given
        await saver.aclose()
        await saver.aclose()
        listed = await client.list_objects_v2(Bucket=moto_server.bucket, Prefix=prefix)
        assert listed["KeyCount"] == 1


@pytest.mark.parametrize("cls", [S3Saver, AsyncS3Saver, MemorySaver])
def test_is_a_saver_by_class(cls: type) -> None:
    """LangGraph asks for a subclass, and looks for methods on the class, not on what it delegates to."""
    assert issubclass(cls, BaseCheckpointSaver)
    names = ["get_tuple", "list", "put", "put_writes", "delete_thread", "get_delta_channel_history"]
    for name in (*names, *(f"a{name}" for name in names), "get_next_version"):
        assert getattr(cls, name) is not getattr(BaseCheckpointSaver, name)
    assert "__getattr__" not in vars(cls)
