"""`get_delta_channel_history`: what a delta channel is rebuilt from."""

from __future__ import annotations

import operator
import random
from collections.abc import Mapping
from typing import Annotated, Any, TypedDict

import pytest
from kit import (
    Archive,
    MemoryArchive,
    Put,
    archive_fixture,  # noqa: F401 - a fixture
    checkpoint,
    config,
    found,
    history,
    kind_fixture,  # noqa: F401 - a fixture
    loop_fixture,  # noqa: F401 - a fixture
    on_a_real_server,
    put,
    saver_fixture,  # noqa: F401 - a fixture
)
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph.graph import START, StateGraph
from memory_saver import MemorySaver

from s3_saver.bucket import List


def chain(saver: Any, length: int, stored: Mapping[int, Any] | None = None, *, ids: Any = None) -> list[Put]:
    """A chain of checkpoints, each with one write of its number; channel "ch" has a value where `stored` has one."""
    puts: list[Put] = []
    for number in range(length):
        values = {"ch": (stored or {})[number]} if number in (stored or {}) else {}
        parent = puts[-1] if puts else None
        puts.append(put(saver, values=values, parent=parent, changed=("ch",), id=ids and ids(number)))
        saver.put_writes(puts[-1].config, [("ch", number)], f"task{number}", "~p")
    return puts


def written(entry: Mapping[str, Any]) -> list[Any]:
    return [value for _, _, value in entry["writes"]]


# What counts


def test_writes_are_oldest_first(saver: Any) -> None:
    """All ancestors' writes from the seed's on come oldest first, as (task, channel, value); the target's do not."""
    puts = chain(saver, 5, {0: _DeltaSnapshot("snapshot")})
    assert history(saver, puts[-1].config, "ch") == {
        "ch": {"seed": _DeltaSnapshot("snapshot"), "writes": [(f"task{n}", "ch", n) for n in range(4)]}
    }


def test_nearest_value_is_the_seed(saver: Any) -> None:
    """The walk ends at the nearest ancestor with a value, whose own writes count and whose elders' do not."""
    puts = chain(saver, 6, {0: _DeltaSnapshot(0), 3: _DeltaSnapshot([3])})
    assert history(saver, puts[-1].config, "ch")["ch"]["seed"] == _DeltaSnapshot([3])
    assert written(history(saver, puts[-1].config, "ch")["ch"]) == [3, 4]
    assert written(history(saver, puts[3].config, "ch")["ch"]) == [0, 1, 2]


def test_target_does_not_count(saver: Any) -> None:
    """Neither the target's value nor its writes are used."""
    puts = chain(saver, 3, {0: "first", 2: "own"})
    saver.put_writes(puts[-1].config, [("ch", "extra")], "other")
    entry = history(saver, puts[-1].config, "ch")["ch"]
    assert (entry["seed"], written(entry)) == ("first", [0, 1])


def test_channels_stop_where_each_has_its_value(saver: Any) -> None:
    """Each channel has its own seed and its own first ancestor, in one walk; a channel never written has neither."""
    puts: list[Put] = []
    for number in range(6):
        values = {1: {"a": "seed a"}, 3: {"b": None}}.get(number, {})
        puts.append(put(saver, values=values, parent=puts[-1] if puts else None, changed=("a", "b", "c")))
        saver.put_writes(puts[-1].config, [("a", number), ("b", number), ("c", number)], "task")
    found_ = history(saver, puts[-1].config, "a", "b", "c", "never")
    assert {name: written(entry) for name, entry in found_.items()} == {
        "a": [1, 2, 3, 4],
        "b": [3, 4],
        "c": [0, 1, 2, 3, 4],
        "never": [],
    }
    assert {name: entry["seed"] for name, entry in found_.items() if "seed" in entry} == {"a": "seed a", "b": None}


def test_no_channels_ask_nothing() -> None:
    """No channels are an empty answer without a request."""
    saver = MemorySaver()
    assert history(saver, config()) == {}
    assert saver.driver.rounds == []


def test_walk_to_the_root(saver: Any) -> None:
    """Where no ancestor has a value, there is no seed, and all writes count."""
    puts = chain(saver, 4)
    entry = history(saver, puts[-1].config, "ch")["ch"]
    assert "seed" not in entry
    assert written(entry) == [0, 1, 2]


def test_plain_value_is_a_seed(saver: Any) -> None:
    """A plain value, from before the channel became a delta channel, is a seed like a snapshot."""
    puts = chain(saver, 4, {0: [10], 1: [10, 20]})
    entry = history(saver, puts[-1].config, "ch")["ch"]
    assert (entry["seed"], written(entry)) == ([10, 20], [1, 2])


def test_inherited_value_is_a_seed(saver: Any) -> None:
    """A value that an ancestor has by its version alone counts as stored there."""
    first = put(saver, values={"ch": "old"})
    second = put(saver, parent=first, changed=())
    third = put(saver, parent=second, changed=("ch",))
    for number, stored in enumerate((first, second, third)):
        saver.put_writes(stored.config, [("ch", number)], "task")
    entry = history(saver, put(saver, parent=third, changed=("ch",)).config, "ch")["ch"]
    assert (entry["seed"], written(entry)) == ("old", [1, 2])


def test_large_seed(archive: Archive) -> None:
    """A seed that is an object of its own is read."""
    puts = chain(archive.open(), 4, {1: _DeltaSnapshot(["x" * 100_000])})
    entry = history(archive.open(), puts[-1].config, "ch")["ch"]
    assert (entry["seed"], written(entry)) == (_DeltaSnapshot(["x" * 100_000]), [1, 2])


def test_order_within_a_checkpoint(saver: Any) -> None:
    """Within one checkpoint writes come by task path, then task id, then index, those without a path first."""
    puts = chain(saver, 3, {0: "seed"})
    saver.put_writes(puts[1].config, [("ch", "c1"), ("x", 0), ("ch", "c2")], "000", "~pull, 2")
    saver.put_writes(puts[1].config, [("ch", "b")], "fff", "~pull, 1")
    saver.put_writes(puts[1].config, [("ch", "a")], "ggg")
    assert written(history(saver, puts[-1].config, "ch")["ch"]) == [0, "a", 1, "b", "c1", "c2"]


def test_writes_that_do_not_stand(saver: Any) -> None:
    """A write that came second at its task and index is not replayed."""
    puts = chain(saver, 2, {0: "seed"})
    saver.put_writes(puts[0].config, [("ch", "second run")], "task0", "~p")
    assert written(history(saver, puts[-1].config, "ch")["ch"]) == [0]


# Where it begins and ends


def test_newest_is_the_target_without_an_id(saver: Any) -> None:
    """A config without an id means the newest checkpoint of its namespace."""
    puts = chain(saver, 4, {0: "seed"})
    put(saver, namespace="n", id="zzz")
    assert history(saver, config(), "ch") == history(saver, puts[-1].config, "ch")
    assert history(saver, config("t", "n"), "ch") == {"ch": {"writes": []}}


def test_unknown_target(saver: Any) -> None:
    """An unknown target has an empty history for every channel, orphaned writes or not."""
    saver.put_writes(config("t", "", "unknown"), [("ch", 1)], "task")
    for where in (config(), config("t", "", "unknown"), config("unknown")):
        assert history(saver, where, "a", "b") == {"a": {"writes": []}, "b": {"writes": []}}
    chain(saver, 2)
    assert history(saver, config("t", "", "unknown"), "ch") == {"ch": {"writes": []}}


def test_target_without_a_parent(saver: Any) -> None:
    """A target without a parent has an empty history."""
    assert history(saver, chain(saver, 1, {0: "own"})[0].config, "ch") == {"ch": {"writes": []}}


def test_missing_parent_ends_the_walk(saver: Any) -> None:
    """A parent that is not stored ends the walk; its orphaned writes do not count."""
    saver.put_writes(config("t", "", "gone"), [("ch", "orphan")], "task")
    first = put(saver, under=config("t", "", "gone"), changed=("ch",))
    saver.put_writes(first.config, [("ch", 1)], "task")
    second = put(saver, parent=first, changed=("ch",))
    assert history(saver, first.config, "ch") == {"ch": {"writes": []}}
    assert history(saver, second.config, "ch") == {"ch": {"writes": [("task", "ch", 1)]}}


@pytest.mark.parametrize("length", [1, 2, 3])
def test_cycle_ends_the_walk(saver: Any, length: int) -> None:
    """Checkpoints that are each other's ancestors are visited once, and the walk ends."""
    for number in range(length):
        parent = str((number - 1) % length)
        put(saver, under=config("t", "", parent), id=str(number), changed=("ch",))
        saver.put_writes(config("t", "", str(number)), [("ch", number)], "task")
    # The target's writes never count, though it is an ancestor of its own.
    target = length - 1
    assert written(history(saver, config("t", "", str(target)), "ch")["ch"]) == list(range(target))
    outside = put(saver, under=config("t", "", str(target)), id="9", changed=("ch",))
    assert written(history(saver, outside.config, "ch")["ch"]) == list(range(length))


def test_duplicate_names_count_once(saver: Any) -> None:
    """A channel that is named twice has its writes once."""
    puts = chain(saver, 3, {0: "seed"})
    assert history(saver, puts[-1].config, "ch", "ch") == history(saver, puts[-1].config, "ch")


def test_empty_id_is_no_parent(saver: Any) -> None:
    """A checkpoint that was put with an empty parent id has no ancestors."""
    stored = put(saver, under=config("t", "", ""))
    assert history(saver, stored.config, "ch") == {"ch": {"writes": []}}


@on_a_real_server
def test_parents_with_greater_ids(archive: Archive) -> None:
    """Parent pointers decide, where ids go up, down or back and forth."""
    names = {"up": lambda n: f"{n:02}", "down": lambda n: f"{50 - n:02}", "mixed": lambda n: f"{(n * 7) % 11:02}"}
    for name, ids in names.items():
        saver = archive.open()
        puts = chain(saver, 8, {2: "seed"}, ids=ids)
        entry = history(archive.open(), puts[-1].config, "ch")["ch"]
        assert (name, entry["seed"], written(entry)) == (name, "seed", [2, 3, 4, 5, 6])
        saver.delete_thread("t")


def test_siblings_do_not_contribute(saver: Any) -> None:
    """Checkpoints of another branch count for nothing; their tasks' writes on the shared ancestor do."""
    trunk = chain(saver, 2, {0: "seed"})
    left = put(saver, parent=trunk[-1], changed=("ch",))
    right = put(saver, parent=trunk[-1], changed=("ch",))
    saver.put_writes(left.config, [("ch", "left")], "task")
    saver.put_writes(right.config, [("ch", "right")], "task")
    ends = [put(saver, parent=branch, changed=("ch",)) for branch in (left, right)]
    assert [written(history(saver, end.config, "ch")["ch"]) for end in ends] == [[0, 1, "left"], [0, 1, "right"]]


def test_namespaces_have_histories_of_their_own(saver: Any) -> None:
    """A checkpoint of the same id in another namespace is no ancestor."""
    for namespace in ("", "n"):
        first = put(saver, namespace=namespace, id="1", values={"ch": namespace}, metadata={})
        saver.put_writes(first.config, [("ch", f"write {namespace}")], "task")
        put(saver, namespace=namespace, id="2", parent=first, changed=("ch",))
    assert history(saver, config("t", "n"), "ch") == {"ch": {"seed": "n", "writes": [("task", "ch", "write n")]}}
    assert history(saver, config(), "ch") == {"ch": {"seed": "", "writes": [("task", "ch", "write ")]}}


# Against the base class, and its cost


@pytest.mark.parametrize("seed", range(4))
def test_equals_the_base_class(seed: int) -> None:
    """On random trees the answer is the one that the base class finds by reading ancestor after ancestor."""
    dice = random.Random(seed)
    archive = MemoryArchive()
    saver = archive.open()
    puts: list[Put] = []
    names = [f"{number:03}" for number in range(60)]
    if seed % 2:
        dice.shuffle(names)
    for name in names:
        parent = dice.choice(puts[-4:]) if puts and dice.random() < 0.97 else None
        values = {channel: dice.random() for channel in "abc" if dice.random() < 0.1}
        values |= {channel: None for channel in "abc" if dice.random() < 0.03}
        changed = [channel for channel in "abc" if channel in values or dice.random() < 0.7]
        puts.append(put(saver, values=values, parent=parent, changed=changed, id=name))
        for _ in range(dice.randrange(4)):
            rows = [(dice.choice("abc"), dice.random()) for _write in range(dice.randrange(3))]
            saver.put_writes(puts[-1].config, rows, f"task{dice.randrange(9)}", dice.choice(["", "~a", "~b"]))
    for stored in [*dice.sample(puts, 12), puts[-1]]:
        expected = BaseCheckpointSaver.get_delta_channel_history(saver, config=stored.config, channels=["a", "b", "c"])
        assert history(archive.open(), stored.config, "a", "b", "c") == expected


def test_a_thousand_ancestors() -> None:
    """A thousand ancestors with writes take at most six rounds, and none is asked for twice."""
    archive = MemoryArchive()
    puts = chain(archive.open(), 1001, ids=lambda number: f"{number:04}")
    reader = archive.open()
    assert written(history(reader, puts[-1].config, "ch")["ch"]) == list(range(1000))
    assert len(reader.driver.rounds) <= 6
    asked = [request for round_ in reader.driver.rounds for request in round_ if not isinstance(request, List)]
    assert len(asked) == len(set(asked)) <= 2001


def test_near_seed_costs_little() -> None:
    """A seed that is near is found without reading the whole thread."""
    archive = MemoryArchive()
    puts = chain(archive.open(), 300, {295: "seed"}, ids=lambda number: f"{number:04}")
    reader = archive.open()
    assert written(history(reader, puts[-1].config, "ch")["ch"]) == [295, 296, 297, 298]
    assert len(reader.driver.rounds) <= 4


# Exit mode of real graphs


def replace_or_add(state: list[str], batches: Any) -> list[str]:
    """A reducer that tells orders apart: "=x" replaces all that came before."""
    result = list(state)
    for batch in batches:
        result = batch if batch[0].startswith("=") else result + batch
    return result


class Log(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(replace_or_add, list, snapshot_frequency=1000)]
    turn: Annotated[int, operator.add]


def build(saver: Any) -> Any:
    builder: Any = StateGraph(Log)
    builder.add_node("z", lambda state: {"log": ["z"], "turn": 1})
    builder.add_node("a", lambda state: {"log": ["=a"], "turn": 1})
    builder.add_node("m", lambda state: {"log": ["m"]})
    builder.add_edge(START, "z")
    builder.add_edge(START, "a")
    builder.add_edge(["z", "a"], "m")
    return builder.compile(checkpointer=saver)


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_replay_order_equals_live_order(durability: str) -> None:
    """A delta channel whose reducer minds the order reads back as it was, on a new thread and a used one."""
    archive = MemoryArchive()
    run: Any = config("t")
    for number in range(3):
        live = build(archive.open()).invoke({"log": [f"input {number}"]}, run, durability=durability)
        state = build(archive.open()).get_state(run)
        assert state.values == live
        assert state.values["log"] == ["=a", "z", "m"]
    reference = InMemorySaver()
    for number in range(3):
        expected = build(reference).invoke({"log": [f"input {number}"]}, run, durability=durability)
    assert live == expected


def test_exit_mode_stub() -> None:
    """The first run in exit mode stores a stub with the writes and a final checkpoint, and both are read."""
    archive = MemoryArchive()
    saver = archive.open()
    build(saver).invoke({"log": ["input"]}, config("t"), durability="exit")
    last, stub = saver.list(config())
    assert stub.metadata == {"step": -2}
    assert stub.parent_config is None
    assert stub.checkpoint["channel_values"] == {}
    assert last.parent_config == stub.config
    assert found(saver, last.config) == last
    values = written(history(saver, last.config, "log")["log"])
    assert values == [["input"], ["=a"], ["z"], ["m"]]
    assert checkpoint()["v"] == last.checkpoint["v"]
