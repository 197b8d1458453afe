"""Long threads, many namespaces, many threads: everything works, and a listing's memory does not grow with them.

`scripts/scale` does the same on a real server, with larger numbers.
"""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from kit import MemoryArchive, config, ids, whole_thread
from scale import Figure, Meter, Rounds, fill_namespaces, fill_thread, fill_threads, thread_figures

LENGTH, NAMESPACES, THREADS = 1500, 1100, 500


class Scaled(MemoryArchive):
    """An archive whose savers' rounds are counted and not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.rounds = Rounds()
        self.meter = Meter(lambda: self.rounds.requests, lambda: self.rounds.count)

    def _open(self, **settings: Any) -> Any:
        saver = super()._open(**settings)
        saver.driver.rounds = self.rounds
        return saver

    def traced(self, what: str) -> Figure:
        """Figures of a listing, with what Python allocates meanwhile."""
        saver = self.open()
        kind, _, thread_id = what.partition(" ")
        calls = {
            "namespace": lambda: saver.list(config(thread_id)),
            "thread": lambda: saver.list(whole_thread(thread_id)),
            "all": lambda: saver.list(None),
            "threads": lambda: saver.threads(),
        }
        tracemalloc.start()
        try:
            return self.meter.measure(what, calls[kind])
        finally:
            tracemalloc.stop()


@pytest.fixture(name="archive")
def archive_fixture() -> Scaled:
    return Scaled()


def test_listing_a_long_thread_is_flat(archive: Scaled) -> None:
    """Ten times the checkpoints take no more memory to list; over all namespaces, a kilobyte or two for each key."""
    fill_thread(archive.open(), "short", LENGTH // 10)
    fill_thread(archive.open(), "long", LENGTH)
    short, long = archive.traced("namespace short"), archive.traced("namespace long")
    assert (short.items, long.items) == (LENGTH // 10, LENGTH)
    assert long.peak_kb < 1.5 * short.peak_kb + 200
    short, long = archive.traced("thread short"), archive.traced("thread long")
    assert (short.items, long.items) == (LENGTH // 10, LENGTH)
    assert long.peak_kb - short.peak_kb < 2 * (LENGTH - LENGTH // 10)


def test_listing_many_threads_is_flat(archive: Scaled) -> None:
    """However many threads there are, listing them, or all their checkpoints, takes the memory of a page of them."""
    fill_threads(archive.open(), THREADS // 4)
    few = {what: archive.traced(what) for what in ("all", "threads")}
    fill_threads(archive.open(), THREADS, first=THREADS // 4)
    many = {what: archive.traced(what) for what in ("all", "threads")}
    assert [figure.items for figure in many.values()] == [2 * THREADS, THREADS]
    for what, figure in many.items():
        # The store in memory sorts all its keys for each answer.
        assert figure.peak_kb < 1.5 * few[what].peak_kb + 300


def test_many_namespaces(archive: Scaled) -> None:
    """A thread of more than a thousand namespaces is listed, copied, pruned and deleted whole, in few rounds."""
    saver = archive.open()
    fill_namespaces(saver, "t", NAMESPACES)
    (item,) = saver.threads()
    assert (len(item.namespaces), item.checkpoints) == (NAMESPACES, 2 * NAMESPACES)
    assert len(ids(saver.list(whole_thread("t")))) == 2 * NAMESPACES
    assert ids(saver.list(config("t", "node:000700"))) == ["2", "1"]
    for call in (lambda: saver.copy_thread("t", "copy"), lambda: saver.prune(["copy"])):
        assert (archive.meter.measure("", call).rounds or 0) < 30
    assert ids(saver.list(whole_thread("copy"))) == ["2"] * NAMESPACES
    saver.delete_thread("t")
    assert [found.thread_id for found in saver.threads()] == ["copy"]


def test_operations_on_a_long_thread(archive: Scaled) -> None:
    """No operation on a long thread takes a round for each checkpoint; `pytest -s` shows the figures."""
    fill_thread(archive.open(), "t", LENGTH)
    for figure in thread_figures(archive.meter, archive.open, "t"):
        print(figure)
        assert figure.rounds is not None
        # A listing takes two for each page of 32.
        assert figure.rounds <= 100
        assert figure.requests < 4 * LENGTH
