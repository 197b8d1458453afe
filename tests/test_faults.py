"""Faults that users of other savers met, one test for each row of the fault table, named after the row.

Rows that are about prune, copy, expiry, or growth of a long thread belong to the next issue: F73 to F80, F83, F100,
M10. M01 (join channels under latency) and M04 (one client) are tests of graphs and drivers, M09 of the two
environments that the suite runs in.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import inspect
import operator
import random
import sys
import threading
import time
import tomllib
import types
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from kit import (
    AIO,
    BOTO,
    MEMORY,
    Archive,
    Background,
    FailingBucket,
    GatedBucket,
    MemoryArchive,
    S3Archive,
    archive_fixture,  # noqa: F401 - a fixture
    checkpoint,
    config,
    found,
    history,
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
from langchain_core.messages import HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from memory_saver import MemorySaver
from savers import Server, async_saver, sync_saver
from slow_proxy import SlowProxy

from s3_saver import (
    AsyncS3Saver,
    CheckpointConflictError,
    CorruptObjectError,
    S3Saver,
    StoreAccessError,
    StoreUnavailableError,
    UnsupportedFormatError,
)
from s3_saver.bucket import Get, List, Put

LARGE = "x" * 70_000

in_memory = pytest.mark.parametrize("kind", [MEMORY])
over_the_wire = pytest.mark.parametrize("kind", [BOTO, AIO])


@asynccontextmanager
async def saver_of(colour: str, server: Server, prefix: str) -> AsyncIterator[Any]:
    """Either saver, for tests that call async methods."""
    if colour == "sync":
        with sync_saver(server, prefix) as saver:
            yield saver
    else:
        async with async_saver(server, prefix) as saver:
            yield saver


both_colours = pytest.mark.parametrize("colour", ["sync", "async"])


def seen_at(endpoint_url: str, server: Server, *, bucket: str | None = None) -> Any:
    """The server as it is seen at another address, or another bucket of it."""
    return types.SimpleNamespace(
        endpoint_url=endpoint_url,
        access_key=server.access_key,
        secret_key=server.secret_key,
        region=server.region,
        bucket=bucket or server.bucket,
    )


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


# Pending writes


@in_memory
def test_f01_parallel_writes_in_order_of_their_paths(saver: Any) -> None:
    """Parallel tasks' writes are read by task path, not by the hash that names the task."""
    stored = put(saver)
    saver.put_writes(stored.config, [("c", 2)], "aaa", "~b")
    saver.put_writes(stored.config, [("c", 1)], "zzz", "~a")
    assert [value for *_, value in writes_at(saver, stored.config)] == [1, 2]
    assert [value for *_, value in next(iter(saver.list(config()))).pending_writes] == [1, 2]


@in_memory
def test_f02_index_is_a_number(saver: Any) -> None:
    """The tenth write comes after the second."""
    stored = put(saver)
    saver.put_writes(stored.config, [(f"c{number}", number) for number in range(12)], "T")
    assert [value for *_, value in writes_at(saver, stored.config)] == list(range(12))


@in_memory
def test_f03_value_and_interrupt_are_both_kept(saver: Any) -> None:
    """An interrupt does not destroy the value that its task wrote before."""
    stored = put(saver)
    saver.put_writes(stored.config, [("x", 1)], "T")
    saver.put_writes(stored.config, [("__interrupt__", "i")], "T")
    assert writes_at(saver, stored.config) == [("T", "__interrupt__", "i"), ("T", "x", 1)]


@in_memory
def test_f05_second_run_of_a_task_replaces_nothing(saver: Any) -> None:
    """The first ordinary write stands, the last special one."""
    stored = put(saver)
    for value in (1, 2):
        saver.put_writes(stored.config, [("x", value), ("__resume__", value)], "T")
    assert writes_at(saver, stored.config) == [("T", "__resume__", 2), ("T", "x", 1)]


def test_f06_parallel_writers_lose_nothing(archive: Archive) -> None:
    """Sixteen threads over two savers write at once, and all is kept."""
    savers = [archive.open(), archive.open()]
    stored = put(savers[0])
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: savers[n % 2].put_writes(stored.config, [("c", n)], f"T{n:02}"), range(16)))
    assert writes_at(archive.open(), stored.config) == [(f"T{n:02}", "c", n) for n in range(16)]


@in_memory
def test_f07_writes_before_their_checkpoint(saver: Any) -> None:
    """Writes that come first show nothing, then all."""
    given = checkpoint()
    where = config("t", "", given["id"])
    saver.put_writes(where, [("x", 1)], "T")
    assert saver.get_tuple(where) is None
    assert list(saver.list(config())) == []
    saver.put(config(), given, {"step": 0}, {})
    assert writes_at(saver, where) == [("T", "x", 1)]


@in_memory
def test_f09_stub_of_exit_mode(saver: Any) -> None:
    """A stub with a step for metadata and None for a parent is a checkpoint like any other."""
    put(saver, metadata={"step": -2}, under=whole_thread(checkpoint_ns="", checkpoint_id=None))
    item = found(saver, config())
    assert item.parent_config is None
    assert item.metadata == {"step": -2}


def test_f10_answer_arrives_once() -> None:
    """An answer to an interrupt outlives an update of the state before the resume, and is used once."""
    heard: list[str] = []

    def ask(state: Log) -> Log:
        answer = interrupt("sure?")
        heard.append(answer)
        return {"log": [answer]}

    def build(saver: Any) -> Any:
        builder = StateGraph(Log)
        builder.add_node("ask", ask)
        builder.add_node("after", lambda state: {"log": ["after"]})
        builder.add_edge(START, "ask")
        builder.add_edge("ask", "after")
        return builder.compile(checkpointer=saver)

    archive = MemoryArchive()
    run: Any = config()
    build(archive.open()).invoke({"log": ["in"]}, run)
    build(archive.open()).update_state(run, {"log": ["edited"]}, as_node="__start__")
    result = build(archive.open()).invoke(Command(resume="yes"), run)
    if "__interrupt__" in result:  # the update may have made a task anew, which asks again
        result = build(archive.open()).invoke(Command(resume="yes"), run)
    assert heard == ["yes"]
    assert result["log"] == ["in", "edited", "yes", "after"]


def test_f11_read_error_is_no_absence() -> None:
    """Whichever request of a read fails, the read raises; it never returns less than there is."""
    bucket = FailingBucket()
    archive = MemoryArchive(bucket=bucket)
    saver = archive.open()
    parent = put(saver, values={"k": LARGE})
    child = put(saver, values={"k": LARGE + "y"}, parent=parent)
    for stored in (parent, child):
        for task in range(3):
            saver.put_writes(stored.config, [("k", task)], f"T{task}")
    reads: list[Callable[[], Any]] = [
        lambda: archive.open().get_tuple(config()),
        lambda: archive.open().get_tuple(child.config),
        lambda: list(archive.open().list(config())),
        lambda: list(archive.open().list(None, filter={"source": "loop"})),
        lambda: history(archive.open(), child.config, "k"),
    ]
    for read in reads:
        bucket.arm(None)
        expected = read()
        for number in range(bucket.asked):
            bucket.arm(number)
            with pytest.raises(StoreUnavailableError, match="injected"):
                read()
        bucket.arm(None)
        assert read() == expected


@on_a_real_server
def test_f12_writes_again_from_a_new_process(archive: Archive) -> None:
    """The same `put_writes` from a new saver changes nothing."""
    stored = put(archive.open())
    rows = [("x", 1), ("__resume__", 2), ("y", 3)]
    for _ in range(2):
        archive.open().put_writes(stored.config, rows, "T", "~p")
        assert writes_at(archive.open(), stored.config) == [("T", "__resume__", 2), ("T", "x", 1), ("T", "y", 3)]


@in_memory
def test_f13_list_shows_writes(saver: Any) -> None:
    """`list` gives what `get_tuple` gives, pending writes among it."""
    stored = put(saver)
    saver.put_writes(stored.config, [("x", 1)], "T")
    (item,) = saver.list(config())
    assert item.pending_writes == [("T", "x", 1)]
    assert item == found(saver, stored.config)


async def test_f14_writes_of_a_step_are_one_request() -> None:
    """Fifty writes are one request, in both colours."""
    saver = MemorySaver()
    rows = [(f"c{number}", number) for number in range(50)]
    saver.put_writes(config("t", "", "1"), rows, "T")
    await saver.aput_writes(config("t", "", "1"), rows, "U")
    assert [[type(request) for request in round_] for round_ in saver.driver.rounds] == [[Put], [Put]]


def test_f15_task_path_is_a_parameter() -> None:
    """LangGraph finds a parameter named `task_path` on both savers, in both colours, and on clones."""
    for saver in (MemorySaver(), S3Saver("b"), AsyncS3Saver("b")):
        clone = saver.with_allowlist([("a", "B")])
        for method in (saver.put_writes, saver.aput_writes, clone.put_writes, clone.aput_writes):
            assert "task_path" in inspect.signature(method).parameters
        saver.close()


@on_a_real_server
def test_f16_every_call_is_durable_on_return(archive: Archive) -> None:
    """What a returned call stored is there for a process that starts at that moment, without any close."""
    saver = archive.open()
    first = put(saver, values={"k": 1})
    assert values_at(archive.open(), first.config) == {"k": 1}
    saver.put_writes(first.config, [("k", 2)], "T")
    assert writes_at(archive.open(), first.config) == [("T", "k", 2)]
    # Killed here, before the next checkpoint: the next process finds the writes, and no trace of a child.
    following = archive.open()
    assert ids(following.list(config())) == [first.id]
    second = put(following, values={"k": 2}, parent=first)
    assert found(archive.open(), config()).config == second.config


# Which checkpoint is the latest, and listing


@on_a_real_server
def test_f18_latest_is_by_id_not_by_time(archive: Archive) -> None:
    """A smaller id that is put later does not become the latest."""
    saver = archive.open()
    high = put(saver, id="1f0ffff0-0000-6000-8000-000000000000")
    put(saver, id="1f000000-0000-6000-8000-000000000000")
    assert found(saver, config()).config == high.config


@in_memory
def test_f20_order_is_that_of_text(saver: Any) -> None:
    """Of "2" and "10" the latest is "2", in whichever order they come."""
    put(saver, id="2")
    put(saver, id="10")
    assert id_of(found(saver, config())) == "2"


@on_a_real_server
def test_f21_list_is_newest_first(archive: Archive) -> None:
    """`list` descends by id, over all namespaces where none is named."""
    saver = archive.open()
    stored = [put(saver, namespace="" if number % 3 else "n").id for number in range(12)]
    assert ids(saver.list(whole_thread())) == stored[::-1]
    assert ids(saver.list(config("t", "n"))) == stored[::3][::-1]


@in_memory
def test_f22_filter_comes_before_the_limit(saver: Any) -> None:
    """The limit counts what the filter leaves."""
    first = put(saver, metadata={"source": "input"})
    for _ in range(50):
        put(saver)
    assert ids(saver.list(config(), filter={"source": "input"}, limit=1)) == [first.id]


@in_memory
def test_f23_limit_below_one(saver: Any) -> None:
    """Limits of zero and below give nothing."""
    put(saver)
    assert [list(saver.list(config(), limit=limit)) for limit in (0, -1)] == [[], []]


@in_memory
def test_f25_before_without_id_is_ignored(saver: Any) -> None:
    """A bound without an id is no bound."""
    for _ in range(3):
        put(saver)
    assert len(list(saver.list(config(), before=whole_thread()))) == 3


@in_memory
def test_f26_missing_namespace_means_all(saver: Any) -> None:
    """In `list` a missing namespace means all of them, an empty one the root; in `get_tuple` both mean the root."""
    root = put(saver, id="1")
    put(saver, namespace="sub", id="2")
    assert ids(saver.list(whole_thread())) == ["2", "1"]
    assert ids(saver.list(config())) == ["1"]
    assert found(saver, whole_thread()).config == root.config


@in_memory
def test_f27_no_config_lists_all_threads(saver: Any) -> None:
    """`list(None)` tells which threads exist, and by what exact names."""
    names = {"a", "b/c", "", "x" * 500}
    for name in names:
        put(saver, name)
    assert {item.config["configurable"]["thread_id"] for item in saver.list(None)} == names


@in_memory
def test_f28_any_metadata_key_filters(saver: Any) -> None:
    """Threads can be found by a key of the user's own; an unknown key matches nothing."""
    put(saver, metadata={"tenant": "a"})
    put(saver, "u", metadata={"tenant": "b"})
    assert [item.metadata["tenant"] for item in saver.list(None, filter={"tenant": "a"})] == ["a"]
    assert list(saver.list(None, filter={"unknown": "a"})) == []


def test_f32_filter_reads_no_payloads() -> None:
    """What is read to find threads by metadata does not grow with the states' size."""
    sizes = []
    for size in (10, 60_000, 500_000):
        archive = MemoryArchive()
        for number in range(20):
            text = random.Random(number).randbytes(size // 2).hex()
            put(archive.open(), f"thread{number}", values={"k": text}, metadata={"n": number})
        reader = archive.open()
        assert list(reader.list(None, filter={"n": -1})) == []
        gets = [request for round_ in reader.driver.rounds for request in round_ if isinstance(request, Get)]
        assert len(gets) == 20
        assert all(request.first_bytes is not None for request in gets)
        sizes.append(sum(len(archive.read(request.key)[: request.first_bytes]) for request in gets))
    assert max(sizes) <= 20 * 32_768
    assert sizes[2] <= 1.1 * sizes[0]


@in_memory
def test_f34_id_in_the_config_restricts_the_list(saver: Any) -> None:
    """A config with an id lists that checkpoint alone."""
    first = put(saver)
    put(saver, parent=first)
    assert ids(saver.list(first.config)) == [first.id]


@on_a_real_server
def test_f35_nothing_remembered_hides_what_others_put(archive: Archive) -> None:
    """A saver that has read the latest sees a newer one of another process at once."""
    one, other = archive.open(), archive.open()
    first = put(one, values={"k": 1})
    assert found(one, config()).config == first.config
    second = put(other, values={"k": 2}, parent=first)
    assert found(one, config()).config == second.config
    assert values_at(one, config()) == {"k": 2}
    other.put_writes(second.config, [("k", 3)], "T")
    assert writes_at(one, config()) == [("T", "k", 3)]


# Keys, threads, namespaces


@on_a_real_server
def test_f36_names_keep_apart(archive: Archive) -> None:
    """Threads and namespaces with separators, escapes and wildcards in their names each read their own."""
    saver = archive.open()
    names = ["a", "a/b", "a:b", "a#b", "a%2Fb", "a b", "é", "a|b", "*", "a=b", "a?b", "a+b", "a\\b", "a\nb"]
    for name in names:
        put(saver, name, values={"v": name})
        put(saver, "namespaces", namespace=name, values={"v": name})
    assert [values_at(saver, config(name)) for name in names] == [{"v": name} for name in names]
    assert [values_at(saver, config("namespaces", name)) for name in names] == [{"v": name} for name in names]
    assert len(list(saver.list(whole_thread("namespaces")))) == len(names)


@on_a_real_server
def test_f37_names_cannot_leave_their_folder(archive: Archive) -> None:
    """Dots and slashes in names reach no other thread, neither by reading nor by deleting."""
    saver = archive.open()
    names = ["..", ".", "a/../b", "../b", "b", "/b", "b/", "..\\b", "%2e%2e", "thread_id=b", "_values"]
    for name in names:
        put(saver, name, namespace=name, values={"v": name})
    folders = {key.split("/threads/")[1].split("/")[0] if "/threads/" in key else key for key in archive.keys()}
    assert len(folders) == len(names)
    for name in ("..", ".", "/b", "a/../b"):
        saver.delete_thread(name)
        names.remove(name)
        assert saver.get_tuple(config(name, name)) is None
    assert [values_at(saver, config(name, name)) for name in names] == [{"v": name} for name in names]


@on_a_real_server
def test_f38_deletion_hits_one_thread(archive: Archive) -> None:
    """Deleting a thread leaves those whose names it begins, or is part of."""
    saver = archive.open()
    others = ["tt", "t2", "at", "t/", "t."]
    for name in ("t", *others):
        put(saver, name)
    saver.delete_thread("t")
    assert saver.get_tuple(config("t")) is None
    assert all(saver.get_tuple(config(name)) for name in others)


@in_memory
def test_f39_placeholders_do_not_collide(saver: Any) -> None:
    """A missing namespace is the empty one, and no namespace with an odd name is taken for it."""
    stored = put(saver, under=whole_thread())
    for name in ("__default__", "~", "None", "null", "%7E"):
        put(saver, namespace=name)
    assert found(saver, config()).config == stored.config
    assert ids(saver.list(config())) == [stored.id]


def test_f43_prefixes_keep_tenants_apart() -> None:
    """Savers with different prefixes on one bucket see and delete nothing of each other's."""
    bucket = MemoryArchive().bucket
    prefixes = ["", "tenant", "tenant1", "tenant/a", "tenant/a/b"]
    savers = {prefix: MemorySaver(bucket, prefix=prefix) for prefix in prefixes}
    for prefix, saver in savers.items():
        put(saver, "t", values={"prefix": prefix}, metadata={"run_id": "R"})
    for prefix, saver in savers.items():
        assert [item.checkpoint["channel_values"] for item in saver.list(None)] == [{"prefix": prefix}]
    for number, prefix in enumerate(prefixes):
        savers[prefix].delete_thread("t")
        assert list(savers[prefix].list(None)) == []
        assert [values_at(savers[other], config()) for other in prefixes[number + 1 :]] == [
            {"prefix": other} for other in prefixes[number + 1 :]
        ]


def test_f44_namespaces_are_stored_as_given() -> None:
    """Graphs inside of graphs, with a thread of their own or not, are stored where LangGraph says, and listed there."""

    def build(saver: Any) -> Any:
        inner = StateGraph(Log)
        inner.add_node("n", lambda state: {"log": ["inner"]})
        inner.add_edge(START, "n")
        own = inner.compile(checkpointer=saver)

        def calls(state: Log) -> Log:
            own.invoke({"log": ["called"]}, {"configurable": {"thread_id": "own"}})
            return {"log": ["called"]}

        builder = StateGraph(Log)
        builder.add_node("sub", inner.compile())
        builder.add_node("memory", inner.compile(checkpointer=True))
        builder.add_node("calls", calls)
        for node in ("sub", "memory", "calls"):
            builder.add_edge(START, node)
        return builder.compile(checkpointer=saver)

    places = []
    for saver in (InMemorySaver(), MemorySaver()):
        build(saver).invoke({"log": ["in"]}, config())
        items = [item.config["configurable"] for item in saver.list(None)]
        places.append(sorted((item["thread_id"], item["checkpoint_ns"].partition(":")[0]) for item in items))
    assert places[0] == places[1]
    assert {name for _, name in places[1]} >= {"", "sub", "memory"}


# State, versions, serialization


@in_memory
def test_f46_versions_of_other_savers_go_on(saver: Any) -> None:
    """A thread that another saver began, with integer, float or text versions, goes on."""
    for current in (None, 3, 3.0, f"{3:032}.0.5", f"{3:032}.{0.7:016}"):
        following = saver.get_next_version(current, None)
        assert int(following.partition(".")[0]) == (1 if current is None else 4)
        if isinstance(current, str):
            assert following > current
    stored = saver.put(config(), checkpoint({"k": 1}, {"k": 3}), {}, {"k": 3})
    version = saver.get_next_version(3, None)
    second = saver.put(stored, checkpoint({"k": 2}, {"k": version}), {}, {"k": version})
    assert values_at(saver, second) == {"k": 2}


@in_memory
def test_f47_unchanged_channels_are_there(saver: Any) -> None:
    """A read gives every channel with a value, not only those that changed last."""
    first = put(saver, values={"m": 1, "n": 1})
    second = put(saver, values={"m": 1, "n": 2}, parent=first, changed=("n",))
    third = put(saver, values={"n": 3}, parent=second, changed=("n",))
    assert values_at(saver, second.config) == {"m": 1, "n": 2}
    assert values_at(saver, third.config) == {"m": 1, "n": 3}


@in_memory
def test_f49_nothing_becomes_none(saver: Any) -> None:
    """A set of tuples, which the serializer cannot rebuild, is not None."""
    stored = put(saver, values={"m": {("a", 1)}})
    got = values_at(saver, stored.config)["m"]
    assert [list(item) for item in got] == [["a", 1]]


@dataclasses.dataclass
class Vanishing:
    """Stands in for a class of an application that is no longer there."""

    x: int


@in_memory
def test_f50_classes_need_not_be_importable(saver: Any) -> None:
    """A checkpoint whose classes are gone can be read, listed and filtered, and its writes and history too."""
    module = types.ModuleType("gone_application")
    module.Vanishing = Vanishing  # type: ignore[attr-defined]
    Vanishing.__module__ = "gone_application"
    sys.modules["gone_application"] = module
    try:
        first = put(saver, values={"m": Vanishing(1)}, metadata={"user": "u", "m": Vanishing(2)})
        saver.put_writes(first.config, [("m", Vanishing(3))], "T")
        second = put(saver, parent=first, changed=("m",), metadata={})
    finally:
        del sys.modules["gone_application"]
    item = found(saver, first.config)
    assert (item.checkpoint["channel_values"], item.metadata) == ({"m": {"x": 1}}, {"user": "u", "m": {"x": 2}})
    assert item.pending_writes == [("T", "m", {"x": 3})]
    assert ids(saver.list(None, filter={"user": "u"})) == [first.id]
    assert history(saver, second.config, "m")["m"]["seed"] == {"x": 1}
    saver.delete_thread("t")
    assert list(saver.list(None)) == []


@in_memory
def test_f51_serializer_limits_are_kept(saver: Any) -> None:
    """The saver adds nothing to the serializer: a deque comes back as one, without its limit."""
    stored = put(saver, values={"m": collections.deque([1], maxlen=3), "c": collections.Counter("aab")})
    got = values_at(saver, stored.config)
    assert got == {"m": collections.deque([1]), "c": {"a": 2, "b": 1}}
    assert got["m"].maxlen is None


def test_f52_all_paths_decode_alike(archive: Archive) -> None:
    """Messages are messages on every path: read, listed, as writes, as metadata, as a delta channel's seed."""
    saver = archive.open()
    message = HumanMessage("hi", id="1")
    first = put(saver, values={"m": message}, metadata={"m": message})
    saver.put_writes(first.config, [("m", message)], "T")
    second = put(saver, parent=first, changed=("m",))
    for item in (found(archive.open(), first.config), list(archive.open().list(config()))[1]):
        assert item.checkpoint["channel_values"] == {"m": message}
        assert item.metadata == {"m": message}
        assert item.pending_writes == [("T", "m", message)]
    assert history(saver, second.config, "m") == {"m": {"seed": message, "writes": [("T", "m", message)]}}


class TwoMethods:
    """A serializer with the two methods of the protocol and nothing else."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        self.seen.append(obj)
        return "mine", repr(obj).encode()

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        assert data[0] == "mine"
        return eval(data[1])


@in_memory
def test_f53_two_methods_make_a_serializer(archive: Archive) -> None:
    """Only `dumps_typed` and `loads_typed` are used, for values, writes and metadata alike."""
    saver = archive.open(serde=TwoMethods())
    stored = put(saver, values={"k": {"v": (1, 2)}, "large": LARGE}, metadata={"m": 1}, later=[1])
    saver.put_writes(stored.config, [("k", {3})], "T")
    item = found(archive.open(serde=TwoMethods()), stored.config)
    assert item.checkpoint == stored.checkpoint
    assert (item.metadata, item.pending_writes) == ({"m": 1}, [("T", "k", {3})])
    again = saver.put(config(), stored.checkpoint, {"m": 1}, stored.versions)
    assert again == stored.config


@in_memory
def test_f54_broken_text_has_no_second_format(archive: Archive) -> None:
    """A lone surrogate in a value is what the serializer makes of it; there is no other format to fall back to."""
    saver = archive.open()
    stored = put(saver, values={"m": "\ud83d"})
    saver.put_writes(stored.config, [("m", "\ud83d")], "T")
    expected = saver.serde.loads_typed(saver.serde.dumps_typed("\ud83d"))
    assert values_at(saver, stored.config) == {"m": expected}
    assert writes_at(saver, stored.config) == [("T", "m", expected)]


@in_memory
def test_f58_old_sends_are_rebuilt(saver: Any) -> None:
    """Sends that an old checkpoint's parent holds as writes are among the values of the child, not of the parent."""
    parent = put(saver, v=3)
    saver.put_writes(parent.config, [("__pregel_tasks", "x")], "T")
    child = put(saver, v=3, parent=parent)
    assert values_at(saver, child.config)["__pregel_tasks"] == ["x"]
    assert values_at(saver, parent.config) == {}


def test_f59_unknown_formats_are_named() -> None:
    """An object of a format that this release does not know is refused by name, on every path."""
    archive = MemoryArchive()
    first = put(archive.open(), values={"large": LARGE})
    second = put(archive.open(), parent=first, changed=("large",))
    for kind in ("checkpoint", "value"):
        key = next(key for key in archive.keys_of(kind) if kind == "value" or first.id in key)
        body = archive.read(key)
        archive.write(key, body[:4] + bytes([99]) + body[5:])
        reads: list[Callable[[], Any]] = [
            lambda: archive.open().get_tuple(first.config),
            lambda: list(archive.open().list(config())),
            lambda: history(archive.open(), second.config, "large"),
        ]
        for read in reads:
            with pytest.raises(UnsupportedFormatError, match="99"):
                read()
        archive.write(key, body)
    assert values_at(archive.open(), first.config) == {"large": LARGE}


def test_f60_dependencies_have_lower_bounds_only() -> None:
    """No dependency of the package is capped, and none may be chosen many years old."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    for dependency in project["dependencies"]:
        assert ">=" in dependency
        assert not any(sign in dependency for sign in ("<", "==", "~=", "!="))


# Metadata and parents


@in_memory
def test_f61_parent_is_what_the_config_names(saver: Any) -> None:
    """`metadata["parents"]` names enclosing graphs; the parent is the config's checkpoint."""
    first = put(saver, namespace="sub", metadata={"parents": {"": "root"}})
    second = put(saver, namespace="sub", parent=first, metadata={"parents": {"": "root"}})
    assert found(saver, first.config).parent_config is None
    assert found(saver, second.config).parent_config == first.config
    assert found(saver, first.config).metadata == {"parents": {"": "root"}}


@pytest.mark.parametrize("nothing", [None, ""])
@in_memory
def test_f62_none_is_no_parent(saver: Any, nothing: Any) -> None:
    """A parent id of None or "" is none, not a text."""
    put(saver, metadata={}, under=whole_thread(checkpoint_ns="", checkpoint_id=nothing))
    assert found(saver, config()).parent_config is None


@in_memory
def test_f63_objects_in_metadata(saver: Any) -> None:
    """Objects that are no JSON may stand in metadata, also under the old key `writes`."""
    metadata = {"source": "loop", "w": HumanMessage("hi"), "writes": {"node": {"when": {1, 2}}}}
    stored = put(saver, metadata=dict(metadata))
    assert found(saver, stored.config).metadata == metadata


@in_memory
def test_f66_secrets_are_not_archived(archive: Archive) -> None:
    """An API key in the config is stored nowhere, unless the user asks for it."""
    under = whole_thread(api_key="sk-f66", user="u")
    stored = put(archive.open(), metadata={}, under=under)
    assert found(archive.open(), stored.config).metadata == {"user": "u"}
    assert all(b"sk-f66" not in archive.read(key) for key in archive.keys())
    stored = put(archive.open(metadata_filter=None), metadata={}, under=under)
    assert found(archive.open(), stored.config).metadata == {"user": "u", "api_key": "sk-f66"}


def test_f67_run_id_is_kept_exactly() -> None:
    """A run that is repeated with its run id does not apply its input again; with another one it does."""

    def build(saver: Any) -> Any:
        builder = StateGraph(Log)
        builder.add_node("n", lambda state: {"log": ["n"]})
        builder.add_edge(START, "n")
        return builder.compile(checkpointer=saver)

    archive = MemoryArchive()
    logs = []
    for run_id in ("R1", "R1", "R2"):
        run: Any = {**config(), "metadata": {"run_id": run_id}}
        logs.append(build(archive.open()).invoke({"log": ["in"]}, run)["log"])
    assert logs == [["in", "n"], ["in", "n"], ["in", "n", "in", "n"]]
    assert [item.metadata["run_id"] for item in archive.open().list(config())].count("R1") == 3


@in_memory
def test_f68_filter_keys_are_data(saver: Any) -> None:
    """A filter's key is compared, never executed: an odd one finds what has exactly it."""
    odd = "a') OR 1=1 --"
    put(saver)
    assert list(saver.list(config(), filter={odd: 1})) == []
    stored = put(saver, metadata={odd: 1})
    assert ids(saver.list(config(), filter={odd: 1})) == [stored.id]


# Deleting


@on_a_real_server
def test_f70_put_after_a_deletion(archive: Archive) -> None:
    """A put after `delete_thread` starts the thread anew: whole, without its past, and deleted by the next call."""
    saver = archive.open()
    first = put(saver, values={"large": LARGE, "k": 1})
    saver.put_writes(config("t", "", "orphan"), [("x", 0)], "T")
    archive.open().delete_thread("t")
    second = put(saver, values={"large": LARGE, "k": 2}, parent=first, changed=("k",))
    saver.put_writes(first.config, [("x", 1)], "T")
    assert saver.get_tuple(first.config) is None
    # The parent's large value went with the thread, so this checkpoint is there as a whole or not at all.
    item = archive.open().get_tuple(config())
    assert item is None or item.checkpoint["channel_values"] == {"large": LARGE, "k": 2}
    archive.open().delete_thread("t")
    assert archive.open().get_tuple(second.config) is None
    assert archive.keys() == [archive.layout.deleted("t")]
    third = put(archive.open(), values={"k": 3})
    assert values_at(archive.open(), third.config) == {"k": 3}


def test_f71_half_deletion_is_completed() -> None:
    """Where a deletion fails at any request, the list shows no ghost, and a second call leaves nothing."""
    for number in range(1, 6):
        bucket = FailingBucket()
        archive = MemoryArchive(bucket=bucket)
        saver = archive.open()
        stored = put(saver, values={"k": LARGE}, metadata={"run_id": "R"})
        saver.put_writes(stored.config, [("k", 1)], "T")
        bucket.arm(number)
        with pytest.raises(StoreUnavailableError):
            saver.delete_thread("t")
        bucket.arm(None)
        listed = [item.checkpoint for item in archive.open().list(None)]
        assert listed in ([], [stored.checkpoint])
        assert [archive.open().get_tuple(stored.config) is not None] == [bool(listed)]
        archive.open().delete_thread("t")
        assert archive.keys() == [archive.layout.deleted("t")]


@both_colours
async def test_f72_every_class_has_every_method(moto_server: Server, prefix: str, colour: str) -> None:
    """Every method works in both colours on both classes, for a thread that is not there."""
    async with saver_of(colour, moto_server, prefix) as saver:
        where = config("unknown", "", "1")

        def all_of_them() -> None:
            assert saver.get(where) is None
            assert saver.get_tuple(where) is None
            assert list(saver.list(where)) == []
            assert saver.get_delta_channel_history(config=where, channels=["c"]) == {"c": {"writes": []}}
            saver.put_writes(config("t", "", "1"), [("x", 1)], "T")
            saver.put(config(), checkpoint(id="1"), {}, {})
            saver.delete_thread("unknown")
            assert saver.get_tuple(config()).pending_writes == [("T", "x", 1)]
            saver.delete_thread("t")

        assert await saver.aget(where) is None
        assert await saver.aget_tuple(where) is None
        assert [item async for item in saver.alist(where)] == []
        assert await saver.aget_delta_channel_history(config=where, channels=["c"]) == {"c": {"writes": []}}
        await saver.aput_writes(config("t", "", "1"), [("x", 1)], "T")
        await saver.aput(config(), checkpoint(id="1"), {}, {})
        await saver.adelete_thread("unknown")
        assert (await saver.aget_tuple(config())).pending_writes == [("T", "x", 1)]
        await saver.adelete_thread("t")
        await asyncio.to_thread(all_of_them)
        assert [item async for item in saver.alist(None)] == []


@pytest.mark.parametrize("damage", ["lost", "unreadable"])
@in_memory
def test_f82_lost_value_is_not_skipped(archive: Archive, damage: str) -> None:
    """Where a value of the newest checkpoint is lost, reading raises; it does not fall back to an older one."""
    saver = archive.open()
    first = put(saver, values={"k": "old"})
    second = put(saver, values={"k": LARGE}, parent=first)
    (key,) = archive.keys_of("value")
    if damage == "lost":
        archive.remove(key)
    else:
        archive.write(key, archive.read(key)[:-9])
    # Who wrote it still remembers the value.
    reader = archive.open()
    for read in (lambda: reader.get_tuple(config()), lambda: next(iter(reader.list(config())))):
        with pytest.raises(CorruptObjectError, match=key.rpartition("/")[2].removesuffix(".bin")):
            read()
    with pytest.raises(CorruptObjectError):
        reader.get_tuple(second.config)
    assert values_at(saver, first.config) == {"k": "old"}


# Delta channels


class Deltas(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(lambda state, batches: [*state, *sum(batches, [])], list)]


def build_deltas(saver: Any) -> Any:
    builder: Any = StateGraph(Deltas)
    builder.add_node("n", lambda state: {"log": [f"n{len(state['log'])}"]})
    builder.add_edge(START, "n")
    return builder.compile(checkpointer=saver)


def test_f84_forks_of_a_delta_channel_do_not_mix() -> None:
    """Two branches from one checkpoint, reloaded, show each its own values."""
    archive = MemoryArchive()
    run: Any = config()
    build_deltas(archive.open()).invoke({"log": ["in"]}, run)
    past = list(build_deltas(archive.open()).get_state_history(run))[1].config
    live = {}
    for name in ("left", "right"):
        fork = build_deltas(archive.open()).update_state(past, {"log": [name]}, as_node="__start__")
        live[name] = build_deltas(archive.open()).invoke(None, fork)
        end = build_deltas(archive.open()).get_state(run)
        assert end.values == live[name]
    assert live["left"]["log"] != live["right"]["log"]
    assert live["left"]["log"][:2] == ["in", "left"]
    assert live["right"]["log"][:2] == ["in", "right"]


def test_f88_delta_walk_is_a_few_rounds() -> None:
    """A walk over three hundred ancestors takes a handful of rounds, not one each."""
    archive = MemoryArchive()
    saver = archive.open()
    previous = put(saver, changed=("m",), id="000")
    for number in range(1, 301):
        saver.put_writes(previous.config, [("m", number)], "T")
        previous = put(saver, parent=previous, changed=("m",), id=f"{number:03}")
    reader = archive.open()
    entry = history(reader, previous.config, "m")["m"]
    assert [value for *_, value in entry["writes"]] == list(range(1, 301))
    assert len(reader.driver.rounds) <= 6


# Async, concurrency, crashes


def environment(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.endpoint_url)


def use(saver: Any, thread_id: str = "t") -> None:
    """Each sync method twice."""
    for number in range(2):
        stored = saver.put(config(thread_id), checkpoint({"k": number}, {"k": "1"}), {}, {"k": "1"})
        saver.put_writes(stored, [("x", number)], "T")
        assert saver.get_tuple(stored).pending_writes == [("T", "x", number)]
        assert len(list(saver.list(config(thread_id)))) == number + 1
    for _ in range(2):
        saver.delete_thread(thread_id)
    assert saver.get_tuple(config(thread_id)) is None


async def ause(saver: Any, thread_id: str = "t") -> None:
    """Each async method once."""
    stored = await saver.aput(config(thread_id), checkpoint({"k": 1}, {"k": "1"}), {}, {"k": "1"})
    await saver.aput_writes(stored, [("x", 1)], "T")
    assert (await saver.aget_tuple(stored)).pending_writes == [("T", "x", 1)]
    assert len([item async for item in saver.alist(config(thread_id))]) == 1
    await saver.adelete_thread(thread_id)


@pytest.mark.parametrize("cls", [S3Saver, AsyncS3Saver])
def test_f89_sync_calls_on_the_loop(
    moto_server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch, cls: type
) -> None:
    """A sync call from a loop's own thread works where the saver does not need that loop."""
    environment(monkeypatch, moto_server)

    async def calls() -> None:
        saver = cls(moto_server.bucket, prefix=prefix)
        use(saver)
        await ause(saver)
        use(saver)
        await saver.aclose()

    Background(lambda: asyncio.run(calls())).result()


async def test_f89_sync_calls_on_the_client_s_loop(moto_server: Server, prefix: str) -> None:
    """Where the saver would wait for the loop it is called on, every sync method raises at once."""
    async with async_saver(moto_server, prefix) as saver:
        await ause(saver)
        calls: list[Callable[[], Any]] = [
            lambda: saver.put(config(), checkpoint(), {}, {}),
            lambda: saver.put_writes(config("t", "", "1"), [("x", 1)], "T"),
            lambda: saver.get_tuple(config()),
            lambda: list(saver.list(config())),
            lambda: saver.delete_thread("t"),
            lambda: saver.get_delta_channel_history(config=config(), channels=["x"]),
            lambda: saver.setup(),
        ]
        for call in calls:
            with pytest.raises(asyncio.InvalidStateError, match="async"):
                call()
        await asyncio.to_thread(use, saver)


@both_colours
async def test_f90_the_loop_is_never_blocked(moto_server: Server, prefix: str, colour: str) -> None:
    """Beside every async method on a slow store, a ticker on the same loop goes on."""
    latency = 0.25
    with SlowProxy(moto_server.endpoint_url, latency_ms=latency * 1000) as proxy:
        async with saver_of(colour, seen_at(proxy.url, moto_server), prefix) as saver:
            gaps: list[float] = []

            async def tick() -> None:
                last = time.monotonic()
                while True:
                    await asyncio.sleep(0.005)
                    gaps.append(time.monotonic() - last)
                    last = time.monotonic()

            await saver.aget_tuple(config())  # what happens once in a client's life is not looked at
            ticker = asyncio.create_task(tick())
            stored = await saver.aput(config(), checkpoint({"k": 1}, {"k": "1"}), {}, {"k": "1"})
            await saver.aput_writes(stored, [("x", 1)], "T")
            assert (await saver.aget_tuple(stored)).pending_writes == [("T", "x", 1)]
            assert len([item async for item in saver.alist(config())]) == 1
            await saver.aget_delta_channel_history(config=stored, channels=["k"])
            await saver.adelete_thread("t")
            ticker.cancel()
    assert len(proxy.requests) >= 10
    # A blocking client would make a gap of each request. A busy machine makes one now and then.
    assert len([gap for gap in gaps if gap > 0.9 * latency]) <= 2


def test_f91_sync_calls_share_one_loop(moto_server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sync method works again and again: in one thread, in two at once, and after other loops have ended."""
    environment(monkeypatch, moto_server)
    before = threading.active_count()
    saver = AsyncS3Saver(moto_server.bucket, prefix=prefix)
    use(saver)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: use(saver, name), ["a", "b"]))
    asyncio.run(ause(saver))
    use(saver)
    asyncio.run(ause(saver))
    saver.close()
    assert threading.active_count() <= before


def test_f92_built_anywhere_used_in_two_loops(
    moto_server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A saver that is made without a loop works in one loop after another."""
    environment(monkeypatch, moto_server)
    for saver in (AsyncS3Saver(moto_server.bucket, prefix=prefix), S3Saver(moto_server.bucket, prefix=prefix)):
        for _ in range(2):
            asyncio.run(ause(saver))
        asyncio.run(saver.aclose())


def test_f93_late_save_does_not_become_the_latest() -> None:
    """An older checkpoint whose put ends last is stored, and does not replace the newer one as the latest."""
    bucket = GatedBucket(holds=lambda request: isinstance(request, Put))
    archive = MemoryArchive(bucket=bucket)
    late = Background(lambda: put(archive.open(), values={"k": "old"}, id="1"))
    assert bucket.reached.wait(5)
    newer = put(archive.open(), values={"k": "new"}, id="2")
    bucket.release()
    older = late.result()
    assert found(archive.open(), config()).config == newer.config
    assert ids(archive.open().list(config())) == [newer.id, older.id]


@on_a_real_server
def test_f94_two_processes_fork_visibly(archive: Archive) -> None:
    """Two processes that go on from one checkpoint leave two branches, and neither overwrites the other."""
    root = put(archive.open(), values={"k": 0})
    savers = [archive.open(), archive.open()]
    branches = [put(saver, values={"k": number}, parent=root) for number, saver in enumerate(savers)]
    items = list(archive.open().list(config()))
    assert [item.parent_config for item in items] == [root.config, root.config, None]
    assert [values_at(archive.open(), branch.config) for branch in branches] == [{"k": 0}, {"k": 1}]
    with pytest.raises(CheckpointConflictError):
        put(savers[0], values={"k": "mine"}, parent=root, id=branches[1].id)
    assert values_at(archive.open(), branches[1].config) == {"k": 1}


@pytest.mark.parametrize("after", [False, True])
def test_f95_failure_at_any_request_of_a_put(after: bool) -> None:
    """Whichever request of a put fails, readers see the old state or the new one, and a retry succeeds."""
    values = {"k": 2, "large": LARGE + "y", "kept": LARGE}
    thread_id = "t" * 500  # its name is an object of its own
    for number in range(20):
        bucket = FailingBucket()
        archive = MemoryArchive(bucket=bucket)
        first = put(archive.open(), thread_id, values={"k": 1, "kept": LARGE}, metadata={"run_id": "R1"})
        child = checkpoint(values, first.versions | {"k": "2", "large": "2"})
        arguments = first.config, child, {"run_id": "R2"}, {"k": "2", "large": "2"}
        bucket.arm(number, after=after)
        try:
            archive.open().put(*arguments)
        except StoreUnavailableError:
            bucket.arm(None)
            seen = [item.checkpoint for item in archive.open().list(None)]
            assert seen in ([first.checkpoint], [child, first.checkpoint])
            archive.open().put(*arguments)
        else:
            assert number > 4
            return
        assert values_at(archive.open(), config(thread_id)) == values
        assert len(list(archive.open().list(None))) == 2
    pytest.fail("the put never ended")


@both_colours
async def test_f97_cancelled_put_leaves_all_or_nothing(moto_server: Server, prefix: str, colour: str) -> None:
    """However far a put has come when it is cancelled, a reader finds it whole or not at all."""
    values = {"k": 1, "large": LARGE}
    async with saver_of(colour, moto_server, prefix) as saver:
        for steps in (0, 1, 2, 5, 20, 60):
            given = checkpoint(values, {"k": "1", "large": "1"})
            arguments = config(f"t{steps}"), given, {"run_id": "R"}, {"k": "1", "large": "1"}
            task = asyncio.create_task(saver.aput(*arguments))
            for _ in range(steps):
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            item = await saver.aget_tuple(config(f"t{steps}"))
            assert item is None or item.checkpoint == given
            await saver.aput(*arguments)
            assert (await saver.aget_tuple(config(f"t{steps}"))).checkpoint == given


@both_colours
async def test_f97_cancelled_caller_cancels_nobody_else(moto_server: Server, prefix: str, colour: str) -> None:
    """Of several callers whose writes go into one batch, a cancelled one takes no other with it."""
    async with saver_of(colour, moto_server, prefix) as saver:
        stored = await saver.aput(config(), checkpoint(), {}, {})
        tasks = [asyncio.create_task(saver.aput_writes(stored, [("x", n)], f"T{n}")) for n in range(8)]
        await asyncio.sleep(0.001)
        tasks[0].cancel()
        tasks[3].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        kept = {task for task, *_ in (await saver.aget_tuple(stored)).pending_writes}
        assert kept >= {f"T{n}" for n in (1, 2, 4, 5, 6, 7)}
        await saver.aput_writes(stored, [("x", 0)], "T0")
        await saver.aput_writes(stored, [("x", 3)], "T3")
        assert len((await saver.aget_tuple(stored)).pending_writes) == 8


@both_colours
async def test_f98_dropped_connections(moto_server: Server, prefix: str, colour: str) -> None:
    """Connections that died between two calls, or whose answer got lost, are no error."""
    with SlowProxy(moto_server.endpoint_url, latency_ms=0) as proxy:
        async with saver_of(colour, seen_at(proxy.url, moto_server), prefix) as saver:
            for number in range(3):
                stored = await saver.aput(config(), checkpoint(id=str(number)), {}, {})
                await saver.aput_writes(stored, [("x", number)], "T")
                for connection in list(proxy._connections):
                    proxy._loop.call_soon_threadsafe(connection.cancel)
                await asyncio.sleep(0.05)
            proxy.lose_answer("PutObject")
            await saver.aput(config(), checkpoint(id="3"), {}, {})
            proxy.fail("PutObject", 503)
            await saver.aput_writes(config("t", "", "3"), [("x", 3)], "T")
            items = [item async for item in saver.alist(config())]
    assert [(id_of(item), item.pending_writes) for item in items] == [
        (str(number), [("T", "x", number)]) for number in (3, 2, 1, 0)
    ]


# Security


def test_f102_moved_objects_are_found_out() -> None:
    """A checkpoint, a batch of writes or a value that was put in another's place is refused, not believed."""
    archive = MemoryArchive()
    saver = archive.open()
    for number, name in enumerate("ab"):
        stored = put(saver, id=name, values={"k": name, "large": f"{number}{LARGE}"})
        saver.put_writes(stored.config, [("k", name)], "T")
    for kind in ("checkpoint", "writes", "value"):
        one, other = archive.keys_of(kind)
        kept = archive.read(one)
        archive.write(one, archive.read(other))
        damaged = []
        for name in "ab":
            try:
                archive.open().get_tuple(config("t", "", name))
            except CorruptObjectError as error:
                damaged.append((name, str(error)))
        assert len(damaged) == 1
        assert one.rpartition("/")[2].removesuffix(".bin") in damaged[0][1]
        archive.write(one, kept)


class Scrambling(JsonPlusSerializer):
    """Stands in for encryption: what it writes cannot be read in the store."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        kind, data = super().dumps_typed(obj)
        return f"{kind}+scrambled", bytes(byte ^ 0x5A for byte in data)

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return super().loads_typed((data[0].partition("+")[0], bytes(byte ^ 0x5A for byte in data[1])))


@in_memory
def test_f103_what_encryption_covers(archive: Archive) -> None:
    """With an encrypting serializer no marker in values, writes, metadata or run id is readable in objects or keys."""
    saver = archive.open(serde=Scrambling())
    marker = "MARKER-f103"
    stored = put(saver, values={"k": marker, "large": marker + LARGE}, metadata={"run_id": marker, "m": [marker]})
    saver.put_writes(stored.config, [("k", marker), ("__error__", ValueError(marker))], "T", "~p")
    for key in archive.keys():
        assert marker not in key
        assert marker.encode() not in archive.read(key)
    item = found(archive.open(serde=Scrambling()), stored.config)
    assert (item.checkpoint["channel_values"]["k"], item.metadata["run_id"]) == (marker, marker)


def test_f104_serializer_through_every_factory(
    moto_server: Server, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A serializer that is given to a constructor or a factory serves values, writes and metadata."""
    environment(monkeypatch, moto_server)
    address = f"s3://{moto_server.bucket}/{prefix}?endpoint_url={moto_server.endpoint_url}"

    def check(saver: Any, serde: TwoMethods) -> None:
        stored = put(saver, values={"k": "value"}, metadata={"m": "metadata"})
        saver.put_writes(stored.config, [("k", "write")], "T")
        assert [seen for seen in serde.seen if seen in ("value", "write", {"m": "metadata"})] == [
            {"m": "metadata"},
            "value",
            "write",
        ]

    async def acheck(serde: TwoMethods) -> None:
        async with AsyncS3Saver.from_conn_string(address, serde=serde) as saver:
            await asyncio.to_thread(check, saver, serde)

    serde = TwoMethods()
    with S3Saver.from_conn_string(address, serde=serde) as saver:
        check(saver, serde)
    asyncio.run(acheck(TwoMethods()))


# Measured on public S3 savers


@on_a_real_server
def test_m02_two_processes_see_each_other_at_once(archive: Archive) -> None:
    """Savers that take turns on one thread each find the other's checkpoint as the latest, every time."""
    savers = [archive.open(), archive.open()]
    previous = None
    for number in range(6):
        stored = put(savers[number % 2], values={"k": number}, parent=previous)
        for saver in savers:
            assert found(saver, config()).config == stored.config
            assert len(list(saver.list(config()))) == number + 1
        previous = stored


@on_a_real_server
def test_m03_nested_namespaces_and_dots(archive: Archive) -> None:
    """Namespaces of nested subgraphs are accepted, and names that others mixed up are kept apart."""
    saver = archive.open()
    places = [
        ("t", "node:id|inner:id"),
        ("t/1", ""),
        ("t", "1"),
        ("t", ""),
        ("t", "__default__"),
        (".", "."),
        ("..", ".."),
    ]
    for number, (thread_id, namespace) in enumerate(places):
        put(saver, thread_id, namespace=namespace, values={"n": number})
    assert [values_at(saver, config(*place)) for place in places] == [{"n": number} for number in range(len(places))]


def test_m05_no_object_is_empty(archive: Archive) -> None:
    """Values and writes of None, empty texts, empty bytes and deletion leave no empty object."""
    saver = archive.open()
    stored = put(saver, "x" * 300, values={"none": None, "text": "", "bytes": b""}, metadata={"run_id": ""})
    saver.put_writes(stored.config, [("none", None), ("bytes", b"")], "T")
    bare = saver.put(config("bare"), checkpoint(), {}, {})
    saver.delete_thread("bare")
    assert bare["configurable"]["thread_id"] == "bare"
    assert writes_at(saver, stored.config) == [("T", "none", None), ("T", "bytes", b"")]
    assert all(archive.read(key) for key in archive.keys())


@in_memory
def test_m06_what_lists_got_wrong(saver: Any) -> None:
    """Filter before limit, an id restricts, no namespace means all, no config means all threads."""
    first = put(saver, metadata={"source": "input"}, id="1")
    put(saver, id="2")
    put(saver, namespace="n", id="3")
    put(saver, "u", id="4")
    assert ids(saver.list(config(), filter={"source": "input"}, limit=1)) == ["1"]
    assert ids(saver.list(first.config)) == ["1"]
    assert ids(saver.list(whole_thread())) == ["3", "2", "1"]
    assert sorted(ids(saver.list(None))) == ["1", "2", "3", "4"]


def test_m07_rounds() -> None:
    """Reads take few rounds, whatever the thread's length: the newest two, ten of a list two, a delta walk six."""
    archive = MemoryArchive()
    saver = archive.open()
    previous = None
    for number in range(250):
        previous = put(saver, values={"k": number}, parent=previous, id=f"{number:03}")
        saver.put_writes(previous.config, [("m", number)], "T")
    assert previous is not None

    def rounds(read: Callable[[Any], Any]) -> list[list[type]]:
        reader = archive.open()
        read(reader)
        return [[type(request) for request in round_] for round_ in reader.driver.rounds]

    assert rounds(lambda s: found(s, config())) == [[List], [Get, Get]]
    assert rounds(lambda s: found(s, previous.config)) == [[Get, List], [Get]]
    assert rounds(lambda s: list(s.list(config(), limit=10))) == [[List], [Get] * 20]
    assert len(rounds(lambda s: history(s, previous.config, "m"))) <= 6
    assert rounds(lambda s: put(s, values={"k": 1}, id="new"))[-1] == [Put]


@over_the_wire
def test_m08_missing_bucket_is_an_error(moto_server: Server, kind: str, loop_thread: Any) -> None:
    """A bucket that is not there is an error that names it, on every method, not an empty archive."""
    missing = seen_at(moto_server.endpoint_url, moto_server, bucket="not-there")
    archive = S3Archive(missing, "p", loop_thread if kind == AIO else None)
    saver = archive.open()
    calls: list[Callable[[], Any]] = [
        lambda: saver.get_tuple(config()),
        lambda: saver.get_tuple(config("t", "", "1")),
        lambda: list(saver.list(config())),
        lambda: list(saver.list(None)),
        lambda: put(saver),
        lambda: saver.put_writes(config("t", "", "1"), [("x", 1)], "T"),
        lambda: saver.delete_thread("t"),
        lambda: history(saver, config(), "x"),
    ]
    for call in calls:
        with pytest.raises(StoreAccessError, match="not-there") as raised:
            call()
        assert "while" in raised.value.__notes__[0]
    archive.close()


@both_colours
async def test_m08_refused_read_is_an_error(moto_server: Server, prefix: str, colour: str) -> None:
    """A refused request while writes are read is an error that names operation and key, not an absence of writes."""
    with SlowProxy(moto_server.endpoint_url, latency_ms=0) as proxy:
        async with saver_of(colour, seen_at(proxy.url, moto_server), prefix) as saver:
            stored = await saver.aput(config(), checkpoint(), {}, {})
            await saver.aput_writes(stored, [("x", 1)], "T")
            for skip in (0, 1):
                proxy.fail("GetObject", 403, skip=skip)
                with pytest.raises(StoreAccessError, match=r"reading .*threads/thread_id=t/.*AccessDenied"):
                    await saver.aget_tuple(config())
                proxy.reset()
            proxy.fail("ListObjectsV2", 403)
            with pytest.raises(StoreAccessError, match=r"listing .*threads/thread_id=t/"):
                await saver.aget_tuple(config())
            assert (await saver.aget_tuple(config())).pending_writes == [("T", "x", 1)]
