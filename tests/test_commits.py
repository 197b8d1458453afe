"""Group commit: who waits for what, who leads, and whom an error or an interruption reaches."""

import asyncio
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

import pytest

from manifests.writes import WriteRow
from s3_saver.commits import LoopCommits, Queue, Rows, ThreadCommits
from s3_saver.refs import Ref

HERE, THERE = Ref("thread", "", "1"), Ref("thread", "", "2")


def rows(*numbers: int) -> Rows:
    return [WriteRow("task", "", number, "channel", "null", b"") for number in numbers]


class Store:
    """Keeps the batches that it was given. Each waits for `gate`; one that holds a number in `broken` fails."""

    def __init__(self, *broken: int) -> None:
        self.batches: list[tuple[Ref, list[int]]] = []
        self.broken = set(broken)
        self.begun = Event()
        self.gate = Event()

    def put(self, ref: Ref, batch: Rows) -> None:
        numbers = [row.idx for row in batch]
        self.batches.append((ref, numbers))
        self.begun.set()
        assert self.gate.wait(10)
        if self.broken & set(numbers):
            raise OSError(f"broken {numbers}")

    @property
    def numbers(self) -> list[list[int]]:
        return [numbers for _, numbers in self.batches]


@contextmanager
def queued(commits: ThreadCommits, store: Store, *numbers: int) -> Iterator[list[Future[None]]]:
    """One submission a thread, begun in this order; the first leads and is held at the store's gate."""
    with ThreadPoolExecutor(len(numbers)) as pool:
        calls = []
        for place, number in enumerate(numbers):
            calls.append(pool.submit(commits.submit, HERE, rows(number)))
            until(lambda place=place: len(commits._queue._waiting.get(HERE, ())) == place and store.begun.is_set())  # type: ignore[misc]
        yield calls
        store.gate.set()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# The queue


def test_queue() -> None:
    """The first to come leads; it takes all that wait, in order, and hands on to the next, if there is one."""
    queue: Queue[str] = Queue()
    assert queue.join(HERE, rows(1), "a")
    assert not queue.join(HERE, rows(2, 3), "b")
    assert queue.join(THERE, rows(9), "x")
    assert queue.take(HERE) == (rows(1, 2, 3), ["a", "b"])
    assert not queue.join(HERE, rows(4), "c")
    assert not queue.join(HERE, rows(5), "d")
    assert queue.hand_on(HERE) == "c"
    queue.leave(HERE, "c")
    assert queue.take(HERE) == (rows(5), ["d"])
    assert queue.hand_on(HERE) is None
    assert queue.join(HERE, rows(6), "e")
    assert queue.give_up(HERE) == ["e"]
    queue.leave(HERE, "e")
    assert queue.join(HERE, rows(7), "f")


# Threads


def test_those_who_wait_share_the_next_batch() -> None:
    """What comes while a batch is being put goes into the next one together, in the order in which it came."""
    store = Store()
    with queued(ThreadCommits(store.put), store, *range(20)) as calls:
        assert store.numbers == [[0]]
    assert [call.result() for call in calls] == [None] * 20
    assert store.numbers == [[0], list(range(1, 20))]


def test_nobody_waits_for_another_checkpoint() -> None:
    """Batches of different checkpoints are put side by side."""
    store = Store()
    commits = ThreadCommits(lambda ref, batch: None if ref == THERE else store.put(ref, batch))
    with queued(commits, store, 1):
        commits.submit(THERE, rows(2))


def test_an_error_reaches_every_caller_of_its_batch_and_no_other() -> None:
    """Both the leader and those who waited with it learn of it; the batches before and after are not concerned."""
    store = Store(2)
    with queued(ThreadCommits(store.put), store, 1, 2, 3) as calls:
        pass
    assert calls[0].result() is None
    for call in calls[1:]:
        with pytest.raises(OSError, match="broken"):
            call.result()
    ThreadCommits(store.put).submit(HERE, rows(4))


def test_the_next_batch_is_put_after_a_failed_one() -> None:
    """A leader whose batch fails hands on all the same."""
    store = Store(1)
    with queued(ThreadCommits(store.put), store, 1, 2) as calls:
        pass
    with pytest.raises(OSError, match="broken"):
        calls[0].result()
    assert calls[1].result() is None
    assert store.numbers == [[1], [2]]


def test_nobody_leads_for_ever() -> None:
    """Whoever leads returns after its own batch, while others keep coming."""
    ended: list[int] = []

    def put(ref: Ref, batch: Rows) -> None:
        time.sleep(0.002)

    commits = ThreadCommits(put)
    stop = Event()

    def busy() -> None:
        while not stop.is_set():
            commits.submit(HERE, rows(1))

    threads = [Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(20):
        commits.submit(HERE, rows(number))
        ended.append(number)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert len(ended) == 20
    assert commits._queue._waiting == {}


@pytest.mark.parametrize("waiting", [1, 2])
def test_an_interrupted_thread_leaves_the_queue(waiting: int) -> None:
    """A main thread that is interrupted while it waits takes nobody with it: later calls do not wait for it."""
    store = Store()
    commits = ThreadCommits(store.put)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with queued(commits, store, 1) as calls:
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(KeyboardInterrupt):
                commits.submit(HERE, rows(2))
            with ThreadPoolExecutor(1) as pool:
                later = pool.submit(commits.submit, HERE, rows(3)) if waiting == 2 else None
                until(lambda: len(commits._queue._waiting[HERE]) == waiting - 1)
                store.gate.set()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert calls[0].result() is None
    assert later is None or later.result() is None
    assert store.numbers == [[1], [3]][:waiting]
    commits.submit(HERE, rows(4))


def test_an_elected_thread_that_leaves_hands_the_lead_on() -> None:
    """Interrupted just after it was given the lead, a thread passes it to the next one that waits."""
    store = Store()
    commits = ThreadCommits(store.put)
    with queued(commits, store, 1, 2) as calls:
        elected: Future[bool] = Future()
        with commits._lock:
            # As `submit` and `_lead` leave it: the elected one waits first, and its future says that it leads.
            commits._queue._waiting[HERE].insert(0, (rows(9), elected))
        store.gate.set()
        assert elected.result(10) is True
        commits._leave(HERE, elected)
    assert [call.result() for call in calls] == [None, None]
    assert store.numbers == [[1], [2]]
    assert commits._queue._waiting == {}


# Event loops


class AsyncStore:
    """Keeps the batches that it was given. Each takes `seconds`; one that holds a number in `broken` fails."""

    def __init__(self, *broken: int, seconds: float = 0.01) -> None:
        self.numbers: list[list[int]] = []
        self.broken = set(broken)
        self.seconds = seconds
        self.ended = 0

    async def put(self, ref: Ref, batch: Rows) -> None:
        numbers = [row.idx for row in batch]
        self.numbers.append(numbers)
        await asyncio.sleep(self.seconds)
        self.ended += 1
        if self.broken & set(numbers):
            raise OSError(f"broken {numbers}")


async def test_tasks_share_batches_in_order() -> None:
    """Those who come while a batch is being put go into the next one together."""
    store = AsyncStore()
    commits = LoopCommits(store.put)
    first = asyncio.create_task(commits.submit(HERE, rows(0)))
    await asyncio.sleep(0.001)
    await asyncio.gather(first, *(commits.submit(HERE, rows(number)) for number in range(1, 20)))
    assert store.numbers == [[0], list(range(1, 20))]
    assert commits._queue._waiting == {}


async def test_an_error_reaches_its_batch_only() -> None:
    """Everybody of the failed batch gets it; the batch after that is put."""
    store = AsyncStore(1)
    commits = LoopCommits(store.put)
    calls = [asyncio.create_task(commits.submit(HERE, rows(number))) for number in (1, 2)]
    await asyncio.sleep(0.001)
    later = asyncio.create_task(commits.submit(HERE, rows(3)))
    found = await asyncio.gather(*calls, later, return_exceptions=True)
    assert [type(one) for one in found] == [OSError, OSError, type(None)]
    assert store.numbers == [[1, 2], [3]]


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_cancelled_task_cancels_nobody(number: int) -> None:
    """Whoever is cancelled, the one that came first or one that waits, all that was submitted is stored."""
    store = AsyncStore()
    commits = LoopCommits(store.put)
    calls = [asyncio.create_task(commits.submit(HERE, rows(0)))]
    await asyncio.sleep(0.001)
    calls += [asyncio.create_task(commits.submit(HERE, rows(one))) for one in (1, 2)]
    await asyncio.sleep(0.001)
    calls[number].cancel()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(one, asyncio.CancelledError) for one in found] == [one == number for one in range(3)]
    await commits.drained()
    assert store.numbers == [[0], [1, 2]]
    assert store.ended == 2
    await commits.submit(HERE, rows(3))


async def test_everybody_cancelled() -> None:
    """What all callers have given up on is stored nevertheless, and nothing is left behind."""
    store = AsyncStore(0)
    commits = LoopCommits(store.put)
    calls = [asyncio.create_task(commits.submit(HERE, rows(number))) for number in range(3)]
    await asyncio.sleep(0.001)
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await commits.drained()
    assert store.ended == 1
    assert commits._queue._waiting == {}


def test_a_loop_that_ends_leaves_nobody_waiting() -> None:
    """When the loop shuts down in the middle of a batch, all who wait are cancelled, and nothing hangs."""
    store = AsyncStore(seconds=60)
    outcomes: list[BaseException | None] = []

    async def call(commits: LoopCommits, number: int) -> None:
        try:
            await commits.submit(HERE, rows(number))
        except asyncio.CancelledError as error:
            outcomes.append(error)
            raise

    async def main() -> None:
        commits = LoopCommits(store.put)
        for number in range(3):
            tasks.append(asyncio.create_task(call(commits, number)))
            await asyncio.sleep(0.001)

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(main())
    assert len(outcomes) == 3
    assert all(task.cancelled() for task in tasks)
