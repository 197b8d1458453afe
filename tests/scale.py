"""Large threads, threads of many namespaces, and many threads: filling an archive with them, and measuring."""

from __future__ import annotations

import threading
import time
import tracemalloc
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit import config, put

# What a checkpoint of the filled threads holds: some text that changes, and some that does not.
TEXT = "The quick brown fox jumps over the lazy dog. " * 20
_STATM = Path("/proc/self/statm")
_PAGE_KB = 4


@dataclass(frozen=True)
class Figure:
    """What an operation took. `rounds` is None where nobody counted, `peak_kb` is above what was in use before."""

    what: str
    items: int
    seconds: float
    requests: int
    rounds: int | None
    peak_kb: float

    def __str__(self) -> str:
        rounds = "" if self.rounds is None else f"{self.rounds:>7,} rounds"
        return (
            f"{self.what:<44}{self.items:>8,} items{self.seconds:>9.2f} s{self.requests:>8,} requests{rounds}"
            f"{self.peak_kb / 1024:>8.1f} MB"
        )


@dataclass
class Meter:
    """Measures calls. `requests` and `rounds` tell how many there have been so far."""

    requests: Callable[[], int]
    rounds: Callable[[], int] | None = None

    def measure(self, what: str, call: Callable[[], Any]) -> Figure:
        """What the call takes; an iterator is consumed, item by item, and counted."""
        requests, rounds = self.requests(), self.rounds() if self.rounds else 0
        memory = _Traced() if tracemalloc.is_tracing() else _Resident()
        began = time.perf_counter()
        found = call()
        items = sum(1 for _ in found) if hasattr(found, "__next__") else 1
        seconds = time.perf_counter() - began
        return Figure(
            what,
            items,
            seconds,
            self.requests() - requests,
            self.rounds() - rounds if self.rounds else None,
            memory.peak_kb(),
        )


class Rounds(list[Any]):
    """What a memory driver keeps its rounds in: it counts them, and keeps none."""

    count = 0
    requests = 0

    def append(self, round_: Any) -> None:
        self.count += 1
        self.requests += len(round_)


class _Traced:
    """What Python allocates: exact, and slow."""

    def __init__(self) -> None:
        tracemalloc.reset_peak()
        self._before = tracemalloc.get_traced_memory()[0]

    def peak_kb(self) -> float:
        return (tracemalloc.get_traced_memory()[1] - self._before) / 1024


class _Resident:
    """What the process has in memory, looked at fifty times a second; 0 where the system does not tell."""

    def __init__(self) -> None:
        self._before = self._peak = _resident_kb()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            self._peak = max(self._peak, _resident_kb())

    def peak_kb(self) -> float:
        self._ended.set()
        self._thread.join()
        return max(self._peak, _resident_kb()) - self._before


def _resident_kb() -> float:
    return int(_STATM.read_text().split()[1]) * _PAGE_KB if _STATM.exists() else 0


# Filling


def fill_thread(saver: Any, thread_id: str, length: int) -> None:
    """A chain of checkpoints, every tenth with writes, one in a hundred named by metadata."""
    last = None
    for number in range(length):
        metadata = {"step": number, "source": "loop", "hundredth": number % 100 == 0}
        last = put(
            saver,
            thread_id,
            id=f"{number:06}",
            parent=last,
            values={"text": f"{number} {TEXT}", "fixed": TEXT},
            changed=("text",) if last else ("text", "fixed"),
            metadata=metadata,
        )
        if number % 10 == 0:
            saver.put_writes(last.config, [("text", number)], f"task {number}")


def fill_namespaces(saver: Any, thread_id: str, count: int, *, workers: int = 1) -> None:
    """A thread with as many namespaces as a loop of subgraph calls makes, two checkpoints in each, and a root."""

    def fill(number: int) -> None:
        namespace = f"node:{number:06}" if number else ""
        first = put(saver, thread_id, namespace=namespace, id="1", values={"k": number})
        put(saver, thread_id, namespace=namespace, id="2", parent=first, values={"k": number})

    _each(fill, range(count), workers)


def fill_threads(saver: Any, count: int, *, first: int = 0, workers: int = 1) -> None:
    """Threads of two checkpoints, up to the number `count`."""

    def fill(number: int) -> None:
        first = put(saver, f"thread {number:06}", id="1", values={"text": TEXT})
        put(saver, f"thread {number:06}", id="2", parent=first, values={"text": TEXT})

    _each(fill, range(first, count), workers)


def _each(call: Callable[[int], None], numbers: Iterable[int], workers: int) -> None:
    if workers == 1:
        for number in numbers:
            call(number)
        return
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(call, numbers))


# Measuring


def thread_figures(meter: Meter, open_saver: Callable[[], Any], thread_id: str) -> list[Figure]:
    """Each operation on one thread, by savers that have seen nothing of it. The thread is gone in the end."""
    where, whole = config(thread_id), {"configurable": {"thread_id": thread_id}}
    copy = f"{thread_id} copy"
    hundredth = {"hundredth": True}
    calls: dict[str, Callable[[Any], Any]] = {
        "get_tuple, the newest": lambda saver: saver.get_tuple(where),
        "list, one namespace": lambda saver: saver.list(where),
        "list, whole thread": lambda saver: saver.list(whole),
        "list, limit=10": lambda saver: saver.list(where, limit=10),
        "list, filter and limit=10, first reader": lambda saver: saver.list(where, filter=hundredth, limit=10),
        "list, filter and limit=10, next reader": lambda saver: saver.list(where, filter=hundredth, limit=10),
        "get_delta_channel_history": lambda saver: saver.get_delta_channel_history(config=where, channels=["none"]),
        "copy_thread": lambda saver: saver.copy_thread(thread_id, copy),
        "plan_prune": lambda saver: saver.plan_prune([copy]),
        "prune, keep_last=100": lambda saver: saver.prune([copy], strategy="keep_last", keep=100),
        "prune, keep_latest": lambda saver: saver.prune([copy]),
        "delete_thread": lambda saver: saver.delete_thread(thread_id),
    }
    figures = []
    for what, call in calls.items():
        saver = open_saver()
        figures.append(meter.measure(what, lambda call=call, saver=saver: call(saver)))  # type: ignore[misc]
    open_saver().delete_thread(copy)
    return figures
