"""The thread that attacks are tried on: its checkpoints and writes, and worlds in which it is stored."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from memory_saver import MemorySaver
from reading import Archive, Point, store_writes, writes_of
from simulation import Make, World, copy_of, process

from s3_saver.bucket import Operation
from s3_saver.drivers.memory import MemoryBucket

Start = Callable[[MemorySaver], Operation[Any]]

BIG = "large " * 40
BIGGER = "larger " * 40
LONG = "thread with a long name " * 12

A = Point("1", values={"messages": ["a"], "document": BIG, "log": ["seed"]}, run="run 1")
# The child stores no `log`: that channel is rebuilt from the writes of its ancestors.
B = A.child("2", values={"messages": ["a"], "document": BIG}, versions={"messages": 1, "document": 1, "log": 2})
# Grandchildren: one changes a small value, one a large one, one makes a small value large as well.
C = B.child("3", values={"messages": ["c"], "document": BIG}, versions={"messages": 3, "document": 1, "log": 2})
D = replace(C, values={"messages": ["a"], "document": BIGGER}, versions={"messages": 1, "document": 3, "log": 2})
E = replace(D, values={"messages": BIG, "document": BIGGER}, versions={"messages": 3, "document": 3, "log": 2})
C, D, E = replace(C, new=("messages",)), replace(D, new=("document",)), replace(E, new=("document", "messages"))
SUB = Point("1", values={"messages": ["sub"]}, ns="sub", run="run 1")

# The writes that A and B have from the start, and those that come.
WRITTEN = {("", "1"): [("log", "w1"), ("messages", "m")], ("", "2"): [("log", "w2")]}
MORE = [("log", "more")]


def moved(thread: str, *points: Point) -> tuple[Point, ...]:
    return tuple(replace(point, thread=thread) for point in points)


def written(point: Point) -> list[tuple[str, Any]]:
    return WRITTEN.get((point.ns, point.id), [])


def filled(bucket: MemoryBucket, *points: Point) -> MemorySaver:
    """Stores `points`, A and B with their writes. The saver that stored them."""
    saver = process(bucket)
    for point in points:
        point.store(saver)
        if written(point):
            store_writes(saver, point, "task 1", written(point))
    return saver


def archive(*points: Point, kept: tuple[Point, ...] = ()) -> Archive:
    """What may be seen of `points`, where `kept` were acknowledged before."""
    found = Archive(points=[*kept, *points], kept=list(kept))
    for point in found.points:
        found.writes[point.place] = [writes_of("task 1", written(point))]
    found.kept_writes = [(point, writes_of("task 1", written(point))) for point in kept]
    return found


def deletes(thread: str = "thread") -> Start:
    return lambda saver: saver._delete_thread(thread)


def world_of(*before: Point, start: dict[str, Start], remembers: str = "") -> Make:
    """Worlds in which `before` is stored and some operations begin, in that order.

    Each is in a process of its own. The one that `remembers` is in that which stored what was there before.
    """
    stored = MemoryBucket()
    filled(stored, *before)

    def make() -> World:
        world = World() if remembers else World(copy_of(stored))
        saver = filled(world.bucket, *before) if remembers else None
        for name, begin in start.items():
            world.start(name, begin(saver if saver is not None and name == remembers else world.saver()))
        return world

    return make
