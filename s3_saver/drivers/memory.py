"""A bucket in memory that behaves like S3, and a driver over it: where safety is proved and rounds are counted."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, TypeVar

from s3_saver.bucket import (
    ABSENT,
    Body,
    Copy,
    CreateBucket,
    Deadline,
    Delete,
    Deleted,
    Get,
    Has,
    HeadBucket,
    Instant,
    Late,
    List,
    Listed,
    Now,
    Operation,
    Page,
    Put,
    Refused,
    Request,
    Round,
    Stored,
    Work,
)
from s3_saver.drivers.steps import drive

A = TypeVar("A")


@dataclass
class MemoryBucket:
    """Objects by key. `clock_ms` is the store's clock; tests move it. `locked` keys cannot be deleted.

    With `ordered=False` it lists like a directory bucket: in no order, only below whole folders, and without
    `StartAfter`.
    """

    ordered: bool = True
    clock_ms: int = 1_000_000
    objects: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    locked: set[str] = field(default_factory=set)

    def answer(self, request: Request[Any]) -> Any:
        match request:
            case Get(key, first_bytes):
                stored = self.objects.get(key)
                return stored and Body(stored[0][:first_bytes], len(stored[0]), _etag(stored[0]))
            case Put(key, body, expect, deadline):
                return self._put(key, body, expect is ABSENT, deadline)
            case List():
                return self._list(request)
            case Copy(source, key):
                return self._copy(source, key)
            case Delete(keys, deadline):
                return self._delete(keys, deadline)
            case Now():
                return self.now()
            case Work(run):
                return run()
            case HeadBucket():
                return True
            case Has():
                return False
            case CreateBucket():
                return None
        raise TypeError(f"no answer to {request!r}")

    def now(self) -> Instant:
        seconds = self.clock_ms / 1000
        return Instant(seconds, seconds, seconds)

    def _put(self, key: str, body: bytes, only_absent: bool, deadline: Deadline | None) -> Stored | Refused | Late:
        if deadline is not None and deadline.passed(self.now()):
            return Late()
        if only_absent and key in self.objects:
            return Refused()
        self.objects[key] = body, self.clock_ms
        return Stored(_etag(body))

    def _copy(self, source: str, key: str) -> Stored | None:
        stored = self.objects.get(source)
        if stored is None:
            return None
        self.objects[key] = stored[0], self.clock_ms
        return Stored(_etag(stored[0]))

    def _delete(self, keys: tuple[str, ...], deadline: Deadline | None) -> Deleted | Late:
        if deadline is not None and deadline.passed(self.now()):
            return Late()
        for key in keys:
            if key not in self.locked:
                self.objects.pop(key, None)
        return Deleted({key: "AccessDenied: locked" for key in keys if key in self.locked})

    def _list(self, request: List) -> Page:
        assert self.ordered or (request.after is None and (not request.prefix or request.prefix.endswith("/")))
        start = request.token or request.after or ""
        names: dict[str, None] = {}
        for key in sorted(self.objects):
            if key.startswith(request.prefix):
                names.setdefault(_upto(key, request.prefix, request.delimiter))
        wanted = [name for name in names if name > start]
        page = wanted[: request.limit]
        if not self.ordered:
            page.reverse()
        return Page(
            keys=tuple(self._listed(name) for name in page if name in self.objects),
            folders=tuple(name for name in page if name not in self.objects),
            token=max(page) if len(wanted) > len(page) else None,
            now_ms=self.clock_ms,
        )

    def _listed(self, key: str) -> Listed:
        body, modified_ms = self.objects[key]
        return Listed(key, len(body), _etag(body), modified_ms)


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'


def _upto(key: str, prefix: str, delimiter: str | None) -> str:
    """The key, or its folder where it lies below one."""
    end = key.find(delimiter, len(prefix)) if delimiter else -1
    return key if end < 0 else key[: end + 1]


class MemoryDriver:
    """Runs operations over a `MemoryBucket` and keeps the rounds that they took in `rounds`."""

    def __init__(self, bucket: MemoryBucket | None = None) -> None:
        self.bucket = bucket or MemoryBucket()
        self.rounds: list[Round] = []

    def run(self, operation: Operation[A]) -> A:
        return drive(operation, self._answer)

    async def arun(self, operation: Operation[A]) -> A:
        return self.run(operation)

    def _answer(self, round_: Round) -> list[Any]:
        asked = tuple(request for request in round_ if not isinstance(request, Now | Work))
        if asked:
            self.rounds.append(asked)
        return [self.bucket.answer(request) for request in round_]
