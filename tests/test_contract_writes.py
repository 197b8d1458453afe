"""`put_writes`: which writes stand, and in which order they are read."""

from __future__ import annotations

import inspect
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from kit import (
    Archive,
    MemoryArchive,
    archive_fixture,  # noqa: F401 - a fixture
    checkpoint,
    config,
    found,
    kind_fixture,  # noqa: F401 - a fixture
    loop_fixture,  # noqa: F401 - a fixture
    on_a_real_server,
    put,
    saver_fixture,  # noqa: F401 - a fixture
    writes_at,
)
from langgraph.types import Interrupt, Send
from memory_saver import MemorySaver

from s3_saver import AsyncS3Saver, S3Saver


def test_no_writes_is_an_empty_list(saver: Any) -> None:
    """A checkpoint without writes has an empty list of them, not None."""
    stored = put(saver)
    assert found(saver, stored.config).pending_writes == []
    assert next(iter(saver.list(config()))).pending_writes == []


def test_first_ordinary_write_stands(archive: Archive) -> None:
    """Of two writes with one task and index the first stands, whatever channel and process the second comes from."""
    saver = archive.open()
    stored = put(saver)
    saver.put_writes(stored.config, [("a", 1), ("b", 1)], "task", "~first")
    saver.put_writes(stored.config, [("a", 2)], "task", "~second")
    archive.open().put_writes(stored.config, [("c", 3), ("b", 3), ("d", 3)], "task")
    assert sorted(writes_at(saver, stored.config)) == [("task", "a", 1), ("task", "b", 1), ("task", "d", 3)]


@pytest.mark.parametrize("channel", ["__error__", "__scheduled__", "__interrupt__", "__resume__"])
def test_last_special_write_stands(archive: Archive, channel: str) -> None:
    """Of two writes of one task to a special channel the last stands, also from another process."""
    saver = archive.open()
    stored = put(saver)
    saver.put_writes(stored.config, [("a", 1), (channel, "old")], "task")
    archive.open().put_writes(stored.config, [(channel, "new")], "task")
    assert writes_at(saver, stored.config) == [("task", channel, "new"), ("task", "a", 1)]


@pytest.mark.parametrize("channel", ["__error_source_node__", "__no_writes__", "__return__", "__pregel_tasks"])
def test_other_reserved_channels_are_ordinary(saver: Any, channel: str) -> None:
    """Only four channels are special; on the other reserved ones the first write stands, too."""
    stored = put(saver)
    for value in (1, 2):
        saver.put_writes(stored.config, [(channel, value)], "task")
    assert writes_at(saver, stored.config) == [("task", channel, 1)]


def test_mixed_list_is_decided_write_by_write(saver: Any) -> None:
    """In a list of ordinary and special writes that comes again, the ordinary stay and the special are replaced."""
    stored = put(saver)
    for value in ("old", "new"):
        saver.put_writes(stored.config, [("a", value), ("__resume__", value), ("b", value)], "task")
    assert writes_at(saver, stored.config) == [
        ("task", "__resume__", "new"),
        ("task", "a", "old"),
        ("task", "b", "old"),
    ]


def test_last_of_equal_special_writes_in_one_list(saver: Any) -> None:
    """A list with one special channel twice leaves the second."""
    stored = put(saver)
    saver.put_writes(stored.config, [("__resume__", 1), ("__error__", "e"), ("__resume__", 2)], "task")
    assert writes_at(saver, stored.config) == [("task", "__resume__", 2), ("task", "__error__", "e")]


def test_position_counts_special_writes(saver: Any) -> None:
    """An ordinary write's index is its place in the whole list, so a list without its special write collides."""
    stored = put(saver)
    saver.put_writes(stored.config, [("__interrupt__", "i"), ("a", 1)], "task")
    saver.put_writes(stored.config, [("b", 2), ("c", 2)], "task")
    assert writes_at(saver, stored.config) == [("task", "__interrupt__", "i"), ("task", "b", 2), ("task", "a", 1)]


def test_empty_list_sends_nothing() -> None:
    """No writes is no request, and makes no checkpoint appear."""
    saver = MemorySaver()
    saver.put_writes(config("t", "", "1"), [], "task")
    assert saver.driver.rounds == []
    assert saver.get_tuple(config()) is None


def test_long_list(saver: Any) -> None:
    """A thousand writes of one task keep their order."""
    stored = put(saver)
    saver.put_writes(stored.config, [(f"c{number % 7}", number) for number in range(1000)], "task")
    assert writes_at(saver, stored.config) == [("task", f"c{number % 7}", number) for number in range(1000)]


@on_a_real_server
def test_order_is_path_task_index(archive: Archive) -> None:
    """Writes come in the order of task path, task id, index, whatever order they arrived in and from where."""
    savers = [archive.open(), archive.open()]
    stored = put(savers[0])
    expected = []
    calls = []
    for path in ("", "~__pregel_pull, a", "~__pregel_pull, b", "~~0000000001~x", "é"):
        for task in (f"0{path}", f"f{path}"):
            calls.append((path, task))
            expected += [(task, "__resume__", path), (task, "x", 0), (task, "x", 2)]
    random.Random(5).shuffle(calls)
    for number, (path, task) in enumerate(calls):
        savers[number % 2].put_writes(stored.config, [("x", 0), ("__resume__", path), ("x", 2)], task, path)
    assert writes_at(archive.open(), stored.config) == expected
    assert next(iter(savers[0].list(config()))).pending_writes == expected


def test_special_write_takes_its_new_path(saver: Any) -> None:
    """A special write that replaces another is ordered by its own path."""
    stored = put(saver)
    saver.put_writes(stored.config, [("__resume__", "old")], "task", "~a")
    saver.put_writes(stored.config, [("x", 1)], "other", "~b")
    saver.put_writes(stored.config, [("__resume__", "new")], "task", "~c")
    assert writes_at(saver, stored.config) == [("other", "x", 1), ("task", "__resume__", "new")]


def test_writes_before_their_checkpoint(archive: Archive) -> None:
    """Writes of a checkpoint that is not stored yet make nothing visible, and are there once it is."""
    saver = archive.open()
    given = checkpoint()
    where = config("t", "", given["id"])
    saver.put_writes(where, [("x", 1)], "task")
    assert saver.get_tuple(where) is None
    assert saver.get_tuple(config()) is None
    assert list(saver.list(None)) == list(saver.list(config())) == []
    saver.put(config(), given, {}, {})
    assert writes_at(archive.open(), where) == [("task", "x", 1)]


def test_writes_on_a_parent_that_has_children(saver: Any) -> None:
    """Writes that arrive after a child was stored show on the parent and in the history, not on the child."""
    parent = put(saver)
    child = put(saver, parent=parent)
    saver.put_writes(parent.config, [("x", 1)], "task")
    assert writes_at(saver, parent.config) == [("task", "x", 1)]
    assert [item.pending_writes for item in saver.list(config())] == [[], [("task", "x", 1)]]
    assert writes_at(saver, child.config) == []


def test_writes_keep_to_their_checkpoint(saver: Any) -> None:
    """Checkpoints with one id in several threads and namespaces have writes of their own."""
    places = [config("t", "", "1"), config("t", "n", "1"), config("u", "", "1"), config("t", "", "11")]
    for number, where in enumerate(places):
        configurable = where["configurable"]
        put(saver, configurable["thread_id"], namespace=configurable["checkpoint_ns"], id=configurable["checkpoint_id"])
        saver.put_writes(where, [("x", number)], "task")
    assert [writes_at(saver, where) for where in places] == [[("task", "x", number)] for number in range(4)]


def test_values_keep_their_types(saver: Any) -> None:
    """Bytes, bytearrays, None and LangGraph's own objects come back as they are; an exception comes back as text."""
    stored = put(saver)
    given = [b"\x00\xff", bytearray(b"x"), None, Interrupt("ask", id="1"), Send("node", {"x": 1}), "x" * 100_000, b""]
    saver.put_writes(stored.config, [("x", value) for value in given], "task")
    got = [value for _, _, value in writes_at(saver, stored.config)]
    assert got == given
    assert [type(value) for value in got] == [type(value) for value in given]
    saver.put_writes(stored.config, [("__error__", ArithmeticError("bad"))], "failed")
    assert ("failed", "__error__", "ArithmeticError('bad')") in writes_at(saver, stored.config)


def test_names_of_any_kind(saver: Any) -> None:
    """Task ids, task paths and channels may hold any characters, and be long."""
    stored = put(saver)
    names = ["", " ", "a/b", "..", "a|b:c~d", "é\u2028", "n" * 2000]
    for name in names:
        saver.put_writes(stored.config, [(name, name)], f"task {name}", name)
    expected = [(f"task {name}", name, name) for name in sorted(names)]
    assert writes_at(saver, stored.config) == expected


@pytest.mark.parametrize("cls", [S3Saver, AsyncS3Saver, MemorySaver])
def test_signature_has_task_path(cls: type) -> None:
    """LangGraph looks for a parameter named `task_path`, and passes no path where there is none."""
    for method in (cls.put_writes, cls.aput_writes):  # type: ignore[attr-defined]
        parameters = inspect.signature(method).parameters
        assert list(parameters) == ["self", "config", "writes", "task_id", "task_path"]
        assert parameters["task_path"].default == ""


@on_a_real_server
def test_parallel_writes_are_all_kept(archive: Archive) -> None:
    """Fifty threads that write for one checkpoint at once, through two savers, lose nothing."""
    savers = [archive.open(), archive.open()]
    stored = put(savers[0])
    with ThreadPoolExecutor(50) as pool:
        calls = [
            pool.submit(savers[n % 2].put_writes, stored.config, [("c", n), ("__resume__", n)], f"{n:02}")
            for n in range(50)
        ]
        for call in calls:
            call.result()
    expected = [row for n in range(50) for row in ((f"{n:02}", "__resume__", n), (f"{n:02}", "c", n))]
    assert writes_at(savers[0], stored.config) == expected


def test_racing_writes_have_one_winner(archive: Archive) -> None:
    """Savers that race for one task and index leave one of the values, and every later read agrees on it."""
    savers = [archive.open() for _ in range(4)]
    stored = put(savers[0])
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(saver.put_writes, stored.config, [("c", n)], "task") for n, saver in enumerate(savers)]
        for call in calls:
            call.result()
    first = writes_at(savers[0], stored.config)
    assert [row[:2] for row in first] == [("task", "c")]
    assert first[0][2] in range(4)
    savers[0].put_writes(stored.config, [("c", "late")], "task")
    assert [writes_at(saver, stored.config) for saver in (*savers, archive.open())] == [first] * 5


def test_slow_clock_does_not_win() -> None:
    """A write that follows another one which its process has read stays second, even where clocks disagree."""
    archive = MemoryArchive()
    ahead, behind = archive.open(), archive.open()
    stored = put(ahead)
    # A batch from a host whose clock is far ahead: the key of an existing batch, moved into the future.
    ahead.put_writes(stored.config, [("c", "first"), ("__resume__", "first")], "task")
    (key,) = archive.keys_of("writes")
    future = key.replace("writes-", "writes-f", 1)
    archive.write(future[: future.index("writes-f")] + "writes-" + "0f" + "f" * 12 + key[-17:], archive.read(key))
    archive.remove(key)
    assert writes_at(behind, stored.config) == [("task", "__resume__", "first"), ("task", "c", "first")]
    behind.put_writes(stored.config, [("c", "second"), ("__resume__", "second")], "task")
    assert writes_at(ahead, stored.config) == [("task", "__resume__", "second"), ("task", "c", "first")]
