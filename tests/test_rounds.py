"""How many requests and round trips each method takes: counted on a bucket in memory, and not one more."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Any

import pytest
from langgraph.checkpoint.base.id import uuid6
from memory_saver import MemorySaver

from manifests.writes import WriteRow
from s3_saver.bucket import Delete, Get, List, Put, Request
from s3_saver.commits import LoopCommits, Rows, ThreadCommits
from s3_saver.drivers.memory import MemoryBucket
from s3_saver.errors import CorruptObjectError
from s3_saver.refs import Ref

LARGE = 70_000


def config(thread: str = "t", ns: str | None = "", id: str | None = None) -> dict[str, Any]:
    names = {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": id}
    return {"configurable": {name: value for name, value in names.items() if value is not None}}


def put(
    saver: MemorySaver,
    parent: str | None = None,
    *,
    thread: str = "t",
    ns: str = "",
    id: str | None = None,
    run: str | None = None,
    v: int = 4,
    values: dict[str, Any] | None = None,
    versions: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
) -> str:
    """Put a checkpoint whose channels all are new, and return its id."""
    values = {"x": 1} if values is None else values
    versions = versions or dict.fromkeys(values, 1)
    made = id or str(uuid6())
    checkpoint = {"v": v, "id": made, "ts": "2026-01-01T00:00:00+00:00", "channel_values": values}
    checkpoint |= {"channel_versions": versions, "versions_seen": {}, "updated_channels": None}
    about = {"source": "loop"} | (metadata or {}) | ({} if run is None else {"run_id": run})
    saver.put(config(thread, ns, parent), checkpoint, about, versions)  # type: ignore[arg-type]
    return made


def chain(saver: MemorySaver, length: int, *, writes: int = 1, **others: Any) -> list[str]:
    """A thread of `length` checkpoints, each with `writes` writes objects; ids from the oldest on."""
    ids: list[str] = []
    for step in range(length):
        ids.append(put(saver, ids[-1] if ids else None, id=f"{step:06}", **others))
        for number in range(writes):
            saver.put_writes(config(id=ids[-1]), [("x", step)], f"task-{number}")
    return ids


@cache
def _long_bucket(length: int) -> MemoryBucket:
    saver = MemorySaver()
    chain(saver, length)
    return saver.driver.bucket


def long_thread(length: int) -> MemorySaver:
    """A saver of another process on a thread of `length` checkpoints, which is made once for all tests."""
    return MemorySaver(_long_bucket(length))


def rounds(saver: MemorySaver) -> list[list[type[Request[Any]]]]:
    """The rounds since the last call, as the kinds of their requests."""
    taken = [[type(request) for request in round_] for round_ in saver.driver.rounds]
    saver.driver.rounds.clear()
    return taken


def fresh(saver: MemorySaver, **others: Any) -> MemorySaver:
    """A saver of another process on the same bucket."""
    return MemorySaver(saver.driver.bucket, **others)


@pytest.fixture
def saver() -> MemorySaver:
    return MemorySaver()


def test_put_of_a_small_state_is_one_request(saver: MemorySaver) -> None:
    """A step costs one PUT, however long the thread is."""
    ids = chain(saver, 50)
    rounds(saver)
    put(saver, ids[-1])
    assert rounds(saver) == [[Put]]


def test_put_with_a_new_run_takes_one_round_more_once(saver: MemorySaver) -> None:
    """A run's two markers go before its first checkpoint in a thread, in one round."""
    first = put(saver, run="r")
    assert rounds(saver) == [[Put, Put], [Put]]
    second = put(saver, first, run="r")
    assert rounds(saver) == [[Put]]
    put(saver, second, run="s")
    assert rounds(saver) == [[Put, Put], [Put]]


def test_put_into_a_thread_with_a_long_name_takes_one_round_more_once(saver: MemorySaver) -> None:
    """Where only the thread's hash is in keys, its name is put first."""
    first = put(saver, thread="t" * 900)
    assert rounds(saver) == [[Put], [Put]]
    put(saver, first, thread="t" * 900)
    assert rounds(saver) == [[Put]]


def test_put_after_another_process_reads_the_parent_once(saver: MemorySaver) -> None:
    """A parent that is not in memory is read: one round more, and only for the first put."""
    first = put(saver)
    other = fresh(saver)
    second = put(other, first)
    assert rounds(other) == [[Get], [Put]]
    put(other, second)
    assert rounds(other) == [[Put]]


def test_put_after_reading_the_parent_is_one_request(saver: MemorySaver) -> None:
    """A resumed thread's head is in memory already."""
    put(saver)
    other = fresh(saver)
    head = other.get_tuple(config())
    assert head is not None
    rounds(other)
    put(other, head.checkpoint["id"])
    assert rounds(other) == [[Put]]


def test_large_values_take_one_round_more_only_when_they_change(saver: MemorySaver) -> None:
    """A large value is put before its checkpoint; unchanged, it is neither serialized nor sent again."""
    first = put(saver, values={"x": 1, "big": "b" * LARGE}, versions={"x": 1, "big": 1})
    assert rounds(saver) == [[Put], [Put]]
    checkpoint = {"v": 4, "id": str(uuid6()), "ts": "", "channel_values": {"x": 2, "big": object()}}
    checkpoint |= {"channel_versions": {"x": 2, "big": 1}, "versions_seen": {}, "updated_channels": None}
    saver.put(config(id=first), checkpoint, {}, {"x": 2})  # type: ignore[arg-type]
    assert rounds(saver) == [[Put]]


@pytest.mark.parametrize("count", [1, 5, 1000])
def test_put_writes_of_any_length_is_one_request(saver: MemorySaver, count: int) -> None:
    """All writes of a task go into one batch."""
    saver.put_writes(config(id="a"), [("x", number) for number in range(count)], "task")
    assert rounds(saver) == [[Put]]


@pytest.mark.parametrize("length", [1, 100, 5000])
def test_newest_takes_two_rounds(length: int) -> None:
    """A listing of a few keys, then the checkpoint and its writes at once, whatever the thread's length."""
    saver = long_thread(length)
    saver.get_tuple(config())
    assert [request.limit for round_ in saver.driver.rounds for request in round_ if isinstance(request, List)] == [12]
    assert rounds(saver) == [[List], [Get, Get]]


def test_by_id_takes_two_rounds(saver: MemorySaver) -> None:
    """The checkpoint and the names of its writes, then these; one round where there are none."""
    ids = chain(saver, 3)
    bare = put(saver, ids[-1])
    rounds(saver)
    saver.get_tuple(config(id=ids[0]))
    assert rounds(saver) == [[Get, List], [Get]]
    saver.get_tuple(config(id=bare))
    assert rounds(saver) == [[Get, List]]
    assert saver.get_tuple(config(id="unknown")) is None
    assert rounds(saver) == [[Get, List]]


def test_large_values_of_the_newest_take_one_round_more(saver: MemorySaver) -> None:
    """Their names are in the checkpoint's header. By id they come with the writes."""
    made = put(saver, values={"big": "b" * LARGE})
    rounds(saver)
    saver.get_tuple(config())
    assert rounds(saver) == [[List], [Get], [Get]]
    saver.get_tuple(config(id=made))
    assert rounds(saver) == [[Get, List], [Get]]


def test_orphaned_folders_are_jumped_over(saver: MemorySaver) -> None:
    """Writes without a checkpoint cost one more page for each orphan that fills one, not one for each batch."""
    put(saver, id="a")
    for number in range(40):
        saver.put_writes(config(id="b"), [("x", number)], f"task-{number}")
    rounds(saver)
    saver.get_tuple(config())
    assert rounds(saver) == [[List], [List], [Get]]


def test_more_batches_than_a_page_take_one_listing_more(saver: MemorySaver) -> None:
    """Pages grow, so even many batches of one checkpoint are listed at the second try."""
    put(saver, id="a")
    for number in range(60):
        saver.put_writes(config(id="a"), [("x", number)], f"task-{number}")
    rounds(saver)
    found = saver.get_tuple(config())
    assert found is not None
    assert len(found.pending_writes or []) == 60
    assert [len(round_) for round_ in rounds(saver)] == [1, 1, 61]


def test_old_formats_take_two_rounds_more(saver: MemorySaver) -> None:
    """Below format 4 a checkpoint's sends are among its parent's writes."""
    ids = chain(saver, 2, writes=1, v=3)
    rounds(saver)
    saver.get_tuple(config(id=ids[1]))
    assert rounds(saver) == [[Get, List], [List, Get], [Get]]


@pytest.mark.parametrize("length", [10, 5000])
def test_list_of_a_namespace_takes_two_rounds_a_page(length: int) -> None:
    """Ten checkpoints are listed, then fetched with their writes at once, whatever the thread's length."""
    saver = long_thread(length)
    assert len(list(saver.list(config(), limit=10))) == 10
    taken = rounds(saver)
    assert taken[0] == [List]
    assert [len(round_) for round_ in taken] == [1, 20]


def test_list_of_all_namespaces_takes_the_listing_and_one(saver: MemorySaver) -> None:
    """To order checkpoints of all namespaces all are listed, but only what is asked for is fetched."""
    chain(saver, 700, writes=1)
    rounds(saver)
    assert len(list(saver.list(config(ns=None), limit=10))) == 10
    assert [len(round_) for round_ in rounds(saver)] == [1, 1, 20]


def test_list_of_one_checkpoint_takes_two_rounds(saver: MemorySaver) -> None:
    """With an id and a namespace it is fetched as `get_tuple` does."""
    ids = chain(saver, 3)
    rounds(saver)
    assert len(list(saver.list(config(id=ids[1])))) == 1
    assert rounds(saver) == [[Get, List], [Get]]


def test_list_of_all_threads_lists_sixteen_at_once(saver: MemorySaver) -> None:
    """Threads are found by one listing of folders, then listed together."""
    for number in range(10):
        put(saver, thread=f"t{number}")
    rounds(saver)
    assert len(list(saver.list(None))) == 10
    assert rounds(saver) == [[List], [List] * 10, [Get] * 10]


def test_nothing_is_asked_before_the_first_item(saver: MemorySaver) -> None:
    """`list` is lazy, and a limit of 0 asks for nothing at all."""
    put(saver)
    rounds(saver)
    saver.list(config())
    assert list(saver.list(config(), limit=0)) == []
    assert rounds(saver) == []


@pytest.mark.parametrize("named", [True, False])
def test_delta_history_over_a_thousand_ancestors(named: bool) -> None:
    """Three pages of the listing and at most three rounds more, for a thousand ancestors with a writes object each."""
    saver = MemorySaver()
    ids = chain(saver, 1001, values={})
    rounds(saver)
    found = saver.get_delta_channel_history(config=config(id=ids[-1] if named else None), channels=["x"])
    assert [value for _, _, value in found["x"]["writes"]] == list(range(1000))
    taken = rounds(saver)
    assert len(taken) <= 6
    assert sum(kind is List for round_ in taken for kind in round_) == 3


def test_delta_history_stops_at_a_near_value(saver: MemorySaver) -> None:
    """With a stored value ten ancestors back, one page of the listing is enough."""
    ids = chain(saver, 1000, values={}, writes=1)
    seed = put(saver, ids[-1], id="100000", values={"x": "seed"})
    head = seed
    for step in range(10):
        saver.put_writes(config(id=head), [("x", step)], "task")
        head = put(saver, head, id=f"10000{step + 1}" if step < 9 else "100010", values={})
    rounds(saver)
    found = saver.get_delta_channel_history(config=config(id=head), channels=["x"])
    assert found["x"]["seed"] == "seed"
    assert [value for _, _, value in found["x"]["writes"]] == list(range(10))
    taken = rounds(saver)
    assert [sum(kind is List for kind in round_) for round_ in taken] == [1, 0, 0]


def test_no_channels_no_requests(saver: MemorySaver) -> None:
    """Nothing is asked for nothing."""
    assert saver.get_delta_channel_history(config=config(), channels=[]) == {}
    assert rounds(saver) == []


def test_delete_thread(saver: MemorySaver) -> None:
    """Listed, marked, deleted kind by kind, and listed again; a thread that is not there costs one listing."""
    chain(saver, 3, run="r", values={"big": "b" * LARGE})
    rounds(saver)
    saver.delete_thread("t")
    assert rounds(saver) == [[List], [Put], [Delete], [Delete], [Delete], [Delete], [Delete], [List]]
    saver.delete_thread("unknown")
    assert rounds(saver) == [[List]]


@pytest.mark.parametrize("length", [3, 40])
def test_a_directory_bucket_gives_the_same_answers(length: int) -> None:
    """Where a store lists in no order, whole threads are listed and sorted: more requests, equal results."""
    plain, odd = MemorySaver(), MemorySaver(MemoryBucket(ordered=False), name="b--use1-az4--x-s3")
    for each in (plain, odd):
        chain(each, length, writes=2)
        put(each, thread="u", ns="n:1")
    for ask in (
        lambda each: each.get_tuple(config()),
        lambda each: list(each.list(config(), limit=2)),
        lambda each: list(each.list(config(), before=config(id="000002"))),
        lambda each: list(each.list(config(ns=None))),
        lambda each: sorted(str(found) for found in each.list(config("u", ns=None))),
        lambda each: each.get_delta_channel_history(config=config(), channels=["y"]),
    ):
        got, expected = ask(odd), ask(plain)
        if isinstance(got, list) and got and isinstance(got[0], str):
            assert len(got) == len(expected)
        else:
            assert got == expected


# Group commit: how many batches concurrent calls become

ROW = WriteRow("task", "", 0, "x", "null", b"")
HERE = Ref("t", "", "a")


def numbered(number: int) -> Rows:
    return [ROW._replace(idx=number)]


def test_twenty_threads_make_at_most_three_batches() -> None:
    """Calls that arrive while a batch is being put go into the next one together; each returns when it is stored."""
    batches: list[Sequence[int]] = []
    lock, pause = Lock(), 0.05

    def store(ref: Ref, rows: Rows) -> None:
        import time

        time.sleep(pause)
        with lock:
            batches.append([row.idx for row in rows])

    commits = ThreadCommits(store)

    def call(number: int) -> bool:
        commits.submit(HERE, numbered(number))
        with lock:
            return any(number in batch for batch in batches)

    with ThreadPoolExecutor(20) as pool:
        assert all(pool.map(call, range(20)))
    assert sorted(number for batch in batches for number in batch) == list(range(20))
    assert len(batches) <= 3


async def test_twenty_tasks_make_at_most_three_batches() -> None:
    """On an event loop likewise; calls of one turn of the loop even share the first batch."""
    batches: list[Sequence[int]] = []

    async def store(ref: Ref, rows: Rows) -> None:
        await asyncio.sleep(0.01)
        batches.append([row.idx for row in rows])

    commits = LoopCommits(store)
    await asyncio.gather(*(commits.submit(HERE, numbered(number)) for number in range(20)))
    assert sorted(number for batch in batches for number in batch) == list(range(20))
    assert len(batches) <= 3


async def test_one_task_alone_waits_for_nobody() -> None:
    """Batches of different checkpoints do not wait for each other."""
    going = asyncio.Event()

    async def store(ref: Ref, rows: Rows) -> None:
        if ref == HERE:
            await going.wait()

    commits = LoopCommits(store)
    slow = asyncio.create_task(commits.submit(HERE, numbered(0)))
    await asyncio.sleep(0)
    await asyncio.wait_for(commits.submit(Ref("t", "", "b"), numbered(0)), 1)
    going.set()
    await slow


async def test_an_error_reaches_those_of_its_batch_only() -> None:
    """Who shared the failed batch hears of it; the next batch is put all the same."""

    async def store(ref: Ref, rows: Rows) -> None:
        await asyncio.sleep(0.01)
        if rows[0].idx == 0:
            raise ValueError("the first batch")

    commits = LoopCommits(store)
    first = asyncio.create_task(commits.submit(HERE, numbered(0)))
    await asyncio.sleep(0.005)
    second = asyncio.create_task(commits.submit(HERE, numbered(1)))
    with pytest.raises(ValueError, match="the first batch"):
        await first
    await second


async def test_a_cancelled_caller_cancels_nobody_else() -> None:
    """Its rows may be stored or not; the batch that it shares goes on."""
    stored: list[int] = []

    async def store(ref: Ref, rows: Rows) -> None:
        await asyncio.sleep(0.02)
        stored.extend(row.idx for row in rows)

    commits = LoopCommits(store)
    calls = [asyncio.create_task(commits.submit(HERE, numbered(number))) for number in range(5)]
    await asyncio.sleep(0.01)
    calls[0].cancel()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [None] * 4
    assert sorted(stored) == list(range(5))


# What unusual threads and calls take


def counts(saver: MemorySaver) -> list[int]:
    return [len(round_) for round_ in rounds(saver)]


def test_a_filtered_list_reads_the_manifest(saver: MemorySaver) -> None:
    """A condition on metadata takes one round more, for the manifest; what that lacks is read once, and indexed."""
    ids = chain(saver, 40)
    put(saver, ids[-1], id="1", metadata={"source": "update"})
    rounds(saver)
    assert [found.checkpoint["id"] for found in saver.list(config(), filter={"source": "update"})] == ["1"]
    assert rounds(saver) == [[List], [Get] * 41, [Get], [Put]]
    assert len(list(saver.list(config(), filter={"source": "loop"}, limit=3))) == 3
    assert rounds(saver) == [[List], [Get], [Get] * 6]


def test_list_of_all_namespaces_of_a_long_thread() -> None:
    """The pages of the listing, 1,000 keys each, and one round."""
    saver = long_thread(5000)
    assert len(list(saver.list(config(ns=None), limit=10))) == 10
    # Ten thousand keys: of each checkpoint the object and its writes.
    assert counts(saver) == [1] * 10 + [20]


def test_list_of_all_threads_asks_for_long_names(saver: MemorySaver) -> None:
    """The name of a thread whose key holds a hash takes one round more, for all of them together."""
    for number in range(3):
        put(saver, thread=f"{number}" * 900)
    rounds(saver)
    assert len(list(saver.list(None))) == 3
    assert counts(saver) == [1, 3, 3, 3]


def test_setup(saver: MemorySaver) -> None:
    """The bucket, its features, two puts that probe it, and the probe's end."""
    saver.setup()
    assert counts(saver) == [1, 2, 1, 1, 1]


def test_an_old_checkpoint_without_its_parent_takes_one_more(saver: MemorySaver) -> None:
    """Below format 4, where the parent is not there, the checkpoint is looked for again: both may be going."""
    made = put(saver, "gone", v=3)
    rounds(saver)
    assert saver.get_tuple(config(id=made)) is not None
    assert rounds(saver) == [[Get, List], [List], [Get]]


def test_delta_history_with_a_parent_that_is_gone(saver: MemorySaver) -> None:
    """Where the path breaks off, two rounds look why: the thread may be going, or a copy of it may have come."""
    parent = put(saver, "0", id="1", values={})
    saver.put_writes(config(id=parent), [("x", 1)], "task")
    head = put(saver, parent, id="2", values={})
    rounds(saver)
    found = saver.get_delta_channel_history(config=config(id=head), channels=["x"])
    assert [value for _, _, value in found["x"]["writes"]] == [1]
    assert rounds(saver) == [[Get, List], [Get], [Get], [Get, Get], [Get]]


def test_delta_history_with_greater_ids_takes_a_round_for_each(saver: MemorySaver) -> None:
    """Parent pointers decide. An ancestor with a greater id than the target's is fetched alone."""
    ids = ["9", "8", "7", "1"]
    for place, id in enumerate(ids):
        put(saver, ids[place - 1] if place else None, id=id, values={"x": "seed"} if id == "9" else {})
        saver.put_writes(config(id=id), [("x", id)], "task")
    rounds(saver)
    found = saver.get_delta_channel_history(config=config(id="1"), channels=["x"])
    assert found["x"]["seed"] == "seed"
    assert [value for _, _, value in found["x"]["writes"]] == ["9", "8", "7"]
    taken = rounds(saver)
    assert taken[0] == [Get, List]
    assert len(taken) <= 1 + 3 + 1


@pytest.mark.filterwarnings("error")
def test_a_damaged_object_is_one_error_and_no_warning(saver: MemorySaver) -> None:
    """Where reading ends early, no part of it is left unawaited."""
    made = put(saver)
    saver.put_writes(config(id=made), [("x", 1)], "task")
    (key,) = [key for key in saver.driver.bucket.objects if key.endswith("_checkpoint.msgpack")]
    saver.driver.bucket.objects[key] = b"S3CP\x01 nonsense", 0
    for read in (
        lambda: saver.get_tuple(config()),
        lambda: saver.get_tuple(config(id=made)),
        lambda: list(saver.list(None)),
        lambda: saver.get_delta_channel_history(config=config(), channels=["x"]),
    ):
        with pytest.raises(CorruptObjectError):
            read()
    gc.collect()
