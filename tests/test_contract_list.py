"""`list`: which checkpoints, in which order, and when they are read."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from kit import (
    Archive,
    MemoryArchive,
    Put,
    archive_fixture,  # noqa: F401 - a fixture
    config,
    found,
    id_of,
    ids,
    kind_fixture,  # noqa: F401 - a fixture
    loop_fixture,  # noqa: F401 - a fixture
    on_a_real_server,
    put,
    saver_fixture,  # noqa: F401 - a fixture
    whole_thread,
)
from memory_saver import MemorySaver
from savers import Server, async_saver, sync_saver

PLACES = [("t", ""), ("t", "n"), ("t", "n:1"), ("u", ""), ("t/2", "n")]


@pytest.fixture(name="filled")
def filled_fixture(saver: Any) -> Any:
    """A saver over five namespaces of three threads, whose ids 1 to 9 were put in no order."""
    fill(saver)
    return saver


def fill(saver: Any) -> None:
    for number in (5, 1, 9, 3, 2, 8, 4, 7, 6):
        thread_id, namespace = PLACES[number % 5]
        metadata = {"odd": number % 2 == 1, "number": number}
        put(saver, thread_id, namespace=namespace, id=str(number), values={"n": number}, metadata=metadata)


def placed(items: Iterator[Any]) -> list[tuple[str, str, str]]:
    return [
        (found["thread_id"], found["checkpoint_ns"], found["checkpoint_id"])
        for found in (item.config["configurable"] for item in items)
    ]


def at(*numbers: int) -> list[tuple[str, str, str]]:
    return [(*PLACES[number % 5], str(number)) for number in numbers]


# Which


@on_a_real_server
def test_what_a_config_lists(archive: Archive) -> None:
    """No config lists all, a thread all its namespaces, a namespace its own, an id at most one in each."""
    saver = archive.open()
    fill(saver)
    for nothing in (None, {}):
        assert sorted(placed(saver.list(nothing))) == sorted(at(*range(1, 10)))
    assert placed(saver.list(whole_thread())) == at(7, 6, 5, 2, 1)
    assert placed(saver.list(whole_thread(checkpoint_ns=None))) == at(7, 6, 5, 2, 1)
    assert placed(saver.list(config())) == at(5)
    assert placed(saver.list(config("t", "n"))) == at(6, 1)
    assert placed(saver.list(config("t", "n", "6"))) == at(6)
    assert placed(saver.list(config("t", "", "6"))) == []
    assert placed(saver.list(whole_thread(checkpoint_id="6"))) == at(6)
    assert placed(saver.list(config("unknown"))) == placed(saver.list(whole_thread("unknown"))) == []
    put(saver, namespace="n:1", id="6")
    both = saver.list(whole_thread(checkpoint_id="6"))
    assert sorted(placed(both)) == [("t", "n", "6"), ("t", "n:1", "6")]


def test_empty_store(saver: Any) -> None:
    """An empty store lists nothing, whatever is asked."""
    for where in (None, {}, config(), whole_thread(), config("t", "n", "1")):
        assert list(saver.list(where)) == []
        assert list(saver.list(where, filter={"a": 1}, before=config("t", "", "1"), limit=5)) == []


@on_a_real_server
def test_order_within_a_thread(archive: Archive) -> None:
    """Within one thread ids descend over all namespaces; with all threads, each thread's do."""
    saver = archive.open()
    fill(saver)
    assert [name for *_, name in placed(saver.list(whole_thread()))] == ["7", "6", "5", "2", "1"]
    everything = placed(saver.list(None))
    for thread_id in ("t", "u", "t/2"):
        names = [name for found, _, name in everything if found == thread_id]
        assert names == sorted(names, reverse=True)


def test_items_are_whole(filled: Any) -> None:
    """Each item equals what `get_tuple` gives for its config: values, metadata, parent and writes."""
    parent = put(filled, values={"k": "x" * 100_000}, id="a")
    child = put(filled, parent=parent, changed=(), id="b")
    filled.put_writes(parent.config, [("k", 1), ("__interrupt__", "i")], "task", "~p")
    items = list(filled.list(None))
    assert len(items) == 11
    assert [found(filled, item.config) for item in items] == items
    assert [len(item.pending_writes) for item in items if id_of(item) in (parent.id, child.id)] == [0, 2]


# Before


@on_a_real_server
def test_before(archive: Archive) -> None:
    """Only smaller ids are listed, as text, whether or not the bound exists or belongs to the namespace."""
    saver = archive.open()
    fill(saver)
    put(saver, namespace="n", id="10", metadata={})
    assert placed(saver.list(config("t", "n"), before=config("t", "n", "6"))) == [("t", "n", "10"), ("t", "n", "1")]
    assert placed(saver.list(config("t", "n"), before=config("t", "", "5"))) == [("t", "n", "10"), ("t", "n", "1")]
    assert placed(saver.list(config("t", "n"), before=config("other", "", "55"), limit=1)) == [("t", "n", "10")]
    assert placed(saver.list(config("t", "n"), before=config("t", "n", "10"))) == at(1)
    assert placed(saver.list(config("t", "n"), before=config("t", "n", "1"))) == []
    assert placed(saver.list(config("t", "n"), before=config("t", "n", "z"))) == [*at(6), ("t", "n", "10"), *at(1)]
    assert placed(saver.list(whole_thread(), before=config("u", "", "6"))) == [*at(5, 2), ("t", "n", "10"), *at(1)]
    assert sorted(placed(saver.list(None, before=config("x", "", "3")))) == sorted([*at(1, 2), ("t", "n", "10")])
    assert placed(saver.list(config("t", "n", "6"), before=config("t", "n", "6"))) == []
    assert placed(saver.list(config("t", "n", "6"), before=config("t", "n", "7"))) == at(6)


def test_before_without_an_id_is_ignored(filled: Any) -> None:
    """A bound without an id is no bound."""
    for bound in (whole_thread(), config(), whole_thread(checkpoint_id=None), whole_thread(checkpoint_id=""), {}):
        assert placed(filled.list(whole_thread(), before=bound)) == at(7, 6, 5, 2, 1)


# Limit


def test_limit(filled: Any) -> None:
    """A limit ends the list after the newest; zero and below give nothing, more than there is gives all."""
    assert placed(filled.list(whole_thread(), limit=2)) == at(7, 6)
    assert placed(filled.list(config("t", "n"), limit=1)) == at(6)
    assert placed(filled.list(whole_thread(), limit=99)) == placed(filled.list(whole_thread(), limit=None))
    assert len(placed(filled.list(None, limit=4))) == 4
    for limit in (0, -1):
        for where in (None, whole_thread(), config()):
            assert list(filled.list(where, limit=limit)) == []


def test_limit_counts_what_the_filter_leaves(filled: Any) -> None:
    """The limit is counted after all other conditions, over all threads and namespaces."""
    assert placed(filled.list(whole_thread(), filter={"odd": False}, limit=1)) == at(6)
    assert placed(filled.list(whole_thread(), filter={"number": 1}, limit=1)) == at(1)
    assert placed(filled.list(None, filter={"number": 3}, limit=1)) == at(3)
    odd = filled.list(whole_thread(), filter={"odd": True}, before=config("t", "", "7"), limit=1)
    assert placed(odd) == at(5)


def test_many_pages() -> None:
    """A list that goes over many pages misses nothing and repeats nothing."""
    archive = MemoryArchive()
    saver = archive.open()
    for number in range(100):
        stored = put(saver, namespace=("", "n")[number % 2], id=f"{number:03}", metadata={"even": number % 4 < 2})
        for task in range(number % 5 if number > 90 else 0):
            saver.put_writes(stored.config, [("x", task)], f"task{task}")
        saver.put_writes(config("t", "", f"{number:03}x"), [("orphan", 1)], "task")
    expected = [f"{number:03}" for number in reversed(range(100))]
    even = [name for name in expected if int(name) % 4 < 2]
    for limit in (None, 33):
        assert ids(saver.list(whole_thread(), limit=limit)) == expected[:limit]
        assert ids(saver.list(config(), limit=limit)) == expected[1::2][:limit]
        assert ids(saver.list(None, filter={"even": True}, limit=limit)) == even[:limit]
    assert [len(item.pending_writes) for item in saver.list(config(), limit=5)] == [3, 1, 4, 2, 0]


# Filter


def describe(saver: Any) -> None:
    """Put checkpoints with metadata of many kinds."""
    put(saver, id="1", metadata={"a": 1, "nested": {"x": 1, "y": [1, {"z": None}]}})
    put(saver, id="2", metadata={"a": None, "a.b": 1, "a' OR 1=1 --": 1, 'quo"ted': 1, " ": 1, "": 1})
    put(saver, id="3", metadata={"a": True, "listed": (1, 2)})
    put(saver, id="4", metadata={"a": "1", "nested": {"x": 1}})
    put(saver, id="5", metadata={"a": 0, "score": 1.5})


@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (None, "54321"),
        ({}, "54321"),
        ({"a": 1}, "31"),
        ({"a": 1.0}, "31"),
        ({"a": True}, "31"),
        ({"a": False}, "5"),
        ({"a": "1"}, "4"),
        ({"a": None}, "2"),
        ({"missing": None}, "54321"),
        ({"missing": 1}, ""),
        ({"nested": {"y": [1, {"z": None}], "x": 1}}, "1"),
        ({"nested": {"x": 1}}, "4"),
        ({"nested": {}}, ""),
        ({"nested.x": 1}, ""),
        ({"a.b": 1}, "2"),
        ({"a' OR 1=1 --": 1}, "2"),
        ({"a') OR 1=1 --": 1}, ""),
        ({'quo"ted': 1}, "2"),
        ({" ": 1}, "2"),
        ({"": 1}, "2"),
        ({"listed": (1, 2)}, ""),
        ({"listed": [1, 2]}, "3"),
        ({"score": 1.5, "a": 0}, "5"),
        ({"score": 1.5, "a": 1}, ""),
    ],
    ids=str,
)
def test_filter(filter: dict[str, Any] | None, expected: str) -> None:
    """Every pair must equal the metadata's value by Python's equality, under any key, at the top level only."""
    saver = MemorySaver()
    describe(saver)
    assert ids(saver.list(config(), filter=filter)) == list(expected)
    assert ids(saver.list(None, filter=filter)) == list(expected)


def test_filter_on_a_store(saver: Any) -> None:
    """A filter works alike in one namespace, a thread and the whole store, and on one id."""
    describe(saver)
    for where in (config(), whole_thread(), None):
        assert ids(saver.list(where, filter={"a": 1})) == ["3", "1"]
    assert ids(saver.list(config("t", "", "1"), filter={"a": 1})) == ["1"]
    assert ids(saver.list(config("t", "", "2"), filter={"a": 1})) == []


def test_filter_is_read_when_the_list_begins(saver: Any) -> None:
    """Changing the filter after the list began changes nothing."""
    describe(saver)
    wanted = {"a": 1}
    items = saver.list(config(), filter=wanted)
    assert id_of(next(items)) == "3"
    wanted["a"] = 0
    assert ids(items) == ["1"]


# When


async def test_nothing_happens_before_the_first_item() -> None:
    """Asking for a list sends no request; the first item does, and no more than it needs."""
    archive = MemoryArchive()
    for number in range(100):
        put(archive.open(), id=f"{number:03}")
    saver = archive.open()
    items = saver.list(config())
    asynchronous = saver.alist(config())
    assert saver.driver.rounds == []
    assert id_of(next(items)) == "099"
    assert len(saver.driver.rounds) == 2
    assert id_of(await anext(asynchronous)) == "099"
    assert len(saver.driver.rounds) == 4
    await asynchronous.aclose()
    unused = saver.alist(config())
    del unused, items, asynchronous
    gc.collect()
    assert len(saver.driver.rounds) == 4


def test_saver_is_free_inside_the_loop(filled: Any) -> None:
    """Any call on the saver works while a list of it is open, also another list."""
    seen = []
    for item in filled.list(whole_thread()):
        seen.append(id_of(item))
        assert found(filled, item.config) == item
        filled.put_writes(item.config, [("x", 1)], "task")
        put(filled, "new", values={"n": len(seen)})
        assert next(iter(filled.list(config("u")))) is not None
    assert seen == ["7", "6", "5", "2", "1"]


def test_abandoned_list(filled: Any) -> None:
    """A list that is left after one item leaks nothing and blocks nothing."""
    for _ in range(3):
        for item in filled.list(None):
            assert item.config
            break
    assert len(list(filled.list(None))) == 9


async def test_abandoned_async_list(moto_server: Server, prefix: str) -> None:
    """An async list that is left after one item, or never begun, leaves the saver and the loop in order."""
    async with async_saver(moto_server, prefix) as saver:
        with sync_saver(moto_server, prefix) as writer:
            fill(writer)
        for _ in range(3):
            async for item in saver.alist(whole_thread()):
                assert id_of(item) == "7"
                await saver.aput_writes(item.config, [("x", 1)], "task")
                break
        saver.alist(None)
        gc.collect()
        assert len([item async for item in saver.alist(None)]) == 9


@on_a_real_server
def test_deleted_while_listed(archive: Archive) -> None:
    """Checkpoints that are deleted while a list is open are left out; the list ends without an error."""
    saver = archive.open()
    for number in range(34):
        put(saver, id=f"{number:02}")
    items = saver.list(config())
    first = [id_of(next(items)) for _ in range(32)]
    archive.open().delete_thread("t")
    assert first == [f"{number:02}" for number in range(33, 1, -1)]
    assert list(items) == []


def test_thread_deleted_while_all_are_listed() -> None:
    """A thread that is deleted between its listing and its reading is left out."""
    archive = MemoryArchive()
    saver = archive.open()
    stored: list[Put] = [put(saver, thread_id) for thread_id in "abc" for _ in range(20)]
    items = saver.list(None)
    next(items)
    archive.open().delete_thread("c")
    left = [item.config["configurable"]["thread_id"] for item in items]
    assert left == ["a"] * 19 + ["b"] * 20
    assert len(stored) == 60


def test_added_while_listed() -> None:
    """Newer checkpoints that are put while a list is open do not disturb it."""
    saver = MemorySaver()
    for number in range(40):
        put(saver, id=f"{number:02}")
    items = saver.list(config())
    first = id_of(next(items))
    put(saver, id="99")
    assert [first, *ids(items)] == [f"{number:02}" for number in range(39, -1, -1)]
