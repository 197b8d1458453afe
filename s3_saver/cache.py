"""What a saver remembers: bytes it has just written or read, never objects. Clones of a saver share it.

Remembered checkpoints are parents of what comes next: a put then needs no read. Nothing is ever read from here that a
caller asks the archive for, so another process's writes are seen at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

from manifests.segments import Row
from s3_saver.bucket import Instant

_BYTES_MAX = 64 * 2**20
_MARKED_MAX = 10_000
_NAMESPACES_MAX = 100


@dataclass(frozen=True, slots=True)
class Beside:
    """A value object that went up beside a checkpoint, which nobody refers to yet: its name, and that of its base.

    `put_at` is when its put began. No sweep touches it until the grace period has passed from there.
    """

    names: tuple[str, ...]
    put_at: Instant


@dataclass(frozen=True, slots=True)
class Remembered:
    """A checkpoint object's bytes and when it was loaded: when the request that showed it to be there began.

    `beside` are value objects to build on, by channel, that went up with it. They are known only to who put it: who
    loads it anew, as every run does when it begins, may do so long after they were swept.
    """

    body: bytes = field(repr=False)
    loaded_at: Instant
    beside: Mapping[str, Beside] = field(default_factory=dict)


class Cache:
    """Bounded by bytes, once for objects and once for values; what was not used longest goes first. Thread-safe."""

    def __init__(self, bytes_max: int = _BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._checkpoints: OrderedDict[str, Remembered] = OrderedDict()
        self._bytes = 0
        self._values: OrderedDict[str, bytes] = OrderedDict()
        self._value_bytes = 0
        self._marked: OrderedDict[tuple[str, str | None], None] = OrderedDict()
        self._rows: OrderedDict[str, list[Row]] = OrderedDict()
        self._clock_us = 0

    def get(self, key: str) -> Remembered | None:
        with self._lock:
            found = self._checkpoints.get(key)
            if found is not None:
                self._checkpoints.move_to_end(key)
            return found

    def remember(self, key: str, body: bytes, loaded_at: Instant, beside: Mapping[str, Beside] | None = None) -> None:
        with self._lock:
            self._drop(key)
            if len(body) > self._bytes_max:
                return
            self._checkpoints[key] = Remembered(body, loaded_at, beside or {})
            self._bytes += len(body)
            while self._bytes > self._bytes_max:
                self._drop(next(iter(self._checkpoints)))

    def forget_thread(self, folder: str) -> None:
        """Forget all below the thread's `folder`: the thread was deleted, or pruned.

        Rows too: they would bring a deleted thread's metadata back, into the manifest of a new one of its name.
        """
        with self._lock:
            for key in [key for key in self._checkpoints if key.startswith(folder)]:
                self._drop(key)
            for key in [key for key in self._values if key.startswith(folder)]:
                self._value_bytes -= len(self._values.pop(key))
            for mark in [mark for mark in self._marked if mark[0] == folder]:
                del self._marked[mark]
            for name in [name for name in self._rows if name.startswith(folder)]:
                del self._rows[name]

    def _drop(self, key: str) -> None:
        found = self._checkpoints.pop(key, None)
        self._bytes -= len(found.body) if found else 0

    # Large values as the serializer made them: what patches are undone with, and made against

    def value(self, key: str) -> bytes | None:
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
            return found

    def keep_value(self, key: str, raw: bytes) -> None:
        """Keep what the value object at `key` holds. No key is ever used for other content."""
        with self._lock:
            if key in self._values or len(raw) > self._bytes_max:
                return
            self._values[key] = raw
            self._value_bytes += len(raw)
            while self._value_bytes > self._bytes_max:
                _, dropped = self._values.popitem(last=False)
                self._value_bytes -= len(dropped)

    # Rows of checkpoints that this saver has put and not indexed yet

    def add_row(self, namespace_folder: str, row: Row, count: int) -> list[Row]:
        """Keep the row. The namespace's latest rows that this saver has put, `count` at most."""
        with self._lock:
            rows = self._rows.pop(namespace_folder, [])
            rows = [*rows, row][-count:]
            self._rows[namespace_folder] = rows
            if len(self._rows) > _NAMESPACES_MAX:
                self._rows.popitem(last=False)
            return list(rows)

    # Which names and markers this saver has put already

    def marked(self, folder: str, run: str | None) -> bool:
        with self._lock:
            return (folder, run) in self._marked

    def mark(self, folder: str, run: str | None) -> None:
        with self._lock:
            self._marked[folder, run] = None
            if len(self._marked) > _MARKED_MAX:
                self._marked.popitem(last=False)

    # The hybrid logical clock of writes batches

    def tick(self, wall_us: int) -> int:
        """The clock for a new batch: the wall clock, or one more than all that was written or seen here."""
        with self._lock:
            self._clock_us = max(wall_us, self._clock_us + 1)
            return self._clock_us

    def saw(self, clock_us: int) -> None:
        """A batch with this clock is in the archive: what is written from now on comes after it."""
        with self._lock:
            self._clock_us = max(self._clock_us, clock_us)
