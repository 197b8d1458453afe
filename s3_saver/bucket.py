"""What may be asked of a bucket, and what it answers. Read this first.

An operation is an `async def` that awaits requests. It is not asyncio: a driver runs it, step by step, and answers
each request. What is awaited together, by `both` or `every`, goes out in one round, concurrently; a round ends when
all of it has ended.

    head, listed = await both(Get(key), List(folder))

An expected outcome is an answer (`None`, `Refused`, `Late`, an empty `Page`). A surprise is raised at the `await`,
as one of `s3_saver.errors`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar, cast

A = TypeVar("A")
B = TypeVar("B")
A_co = TypeVar("A_co", covariant=True)

PAGE_KEYS_MAX = 1000
DELETE_KEYS_MAX = 1000


class Request(Awaitable[A_co], Generic[A_co]):
    """Something that a driver answers. Awaiting it alone is a round of one."""

    __slots__ = ()

    def __await__(self) -> Generator[Round, list[Any], A_co]:
        (answer,) = yield (self,)
        return cast(A_co, answer)


Round: TypeAlias = tuple[Request[Any], ...]
Operation: TypeAlias = Coroutine[Round, list[Any], A]


# Answers


@dataclass(frozen=True, slots=True)
class Body:
    """An object's bytes, all of them or the first ones, with the size of the whole and its ETag."""

    data: bytes = field(repr=False)
    size: int
    etag: str

    @property
    def whole(self) -> bool:
        return len(self.data) == self.size


@dataclass(frozen=True, slots=True)
class Stored:
    """The put object is stored, with this ETag."""

    etag: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A conditional put met an object that is there already (412). It may be our own first try's."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """The keys are gone, but for the `failed` ones, each with the store's reason: a lock, or a right that lacks."""

    failed: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Late:
    """The put was not sent: its deadline had passed."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One key of a listing. `modified_ms` is the store's own clock, in milliseconds since 1970."""

    key: str
    size: int
    etag: str
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a listing: keys, folders (where a delimiter was asked for), and the token of the next page.

    `now_ms` is the store's clock when it answered, in milliseconds since 1970.
    """

    keys: tuple[Listed, ...]
    folders: tuple[str, ...]
    token: str | None
    now_ms: int


# Requests


class Expect(Enum):
    """What a put expects to find at its key."""

    ANY = "any"
    ABSENT = "absent"


ABSENT = Expect.ABSENT


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment on three clocks, in seconds. A suspended machine stops some of them, never all."""

    monotonic: float
    boot: float
    wall: float

    def seconds_until(self, later: Instant) -> float:
        """The longest time that any of the clocks saw."""
        return max(later.monotonic - self.monotonic, later.boot - self.boot, later.wall - self.wall)


@dataclass(frozen=True, slots=True)
class Deadline:
    """No request may be signed more than `seconds` after `since`."""

    since: Instant
    seconds: float

    def passed(self, now: Instant) -> bool:
        return self.since.seconds_until(now) > self.seconds


@dataclass(frozen=True, slots=True)
class Get(Request[Body | None]):
    """Read an object, or its first bytes; None where there is none."""

    key: str
    first_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Put(Request[Stored | Refused | Late]):
    """Store an object. With `expect=ABSENT` nothing is overwritten; after `deadline` nothing is sent."""

    key: str
    body: bytes = field(repr=False)
    expect: Expect = Expect.ANY
    deadline: Deadline | None = None

    def __post_init__(self) -> None:
        # boto3 1.40 waits a minute for some servers' answer to an empty body, so the format has no empty object.
        assert self.body, f"no object is ever empty: {self.key}"


@dataclass(frozen=True, slots=True)
class List(Request[Page]):
    """One page of the keys that start with `prefix`, in the store's order, after `after` or from a page's `token`."""

    prefix: str
    after: str | None = None
    token: str | None = None
    limit: int = PAGE_KEYS_MAX
    delimiter: str | None = None


@dataclass(frozen=True, slots=True)
class Copy(Request[Stored | None]):
    """Copy an object inside the bucket, its bytes never leave the store; None where there is no source."""

    source: str
    key: str


@dataclass(frozen=True, slots=True)
class Delete(Request[Deleted | Late]):
    """Delete up to 1,000 keys; absent ones are no error. After `deadline` nothing is sent."""

    keys: tuple[str, ...]
    deadline: Deadline | None = None

    def __post_init__(self) -> None:
        assert 0 < len(self.keys) <= DELETE_KEYS_MAX


@dataclass(frozen=True, slots=True)
class HeadBucket(Request[bool]):
    """Whether the bucket exists."""


@dataclass(frozen=True, slots=True)
class CreateBucket(Request[None]):
    """Create the bucket; it is no error that the caller owns it already."""


class Feature(Enum):
    """What a bucket may have, valued by the client's method that tells."""

    VERSIONING = "get_bucket_versioning"
    OBJECT_LOCK = "get_object_lock_configuration"


@dataclass(frozen=True, slots=True)
class Has(Request[bool | None]):
    """Whether the bucket has the feature; None where the store does not say, or the credentials may not ask."""

    feature: Feature


@dataclass(frozen=True, slots=True)
class Now(Request[Instant]):
    """The driver's clocks. Costs no request."""


@dataclass(frozen=True, slots=True)
class Work(Request[A_co]):
    """Computing on about `size` bytes. A driver does a small one on the spot, a large one where it blocks nobody."""

    run: Callable[[], A_co]
    size: int


# Waiting for several things at once


async def both(first: Awaitable[A], second: Awaitable[B]) -> tuple[A, B]:
    """The answers of two requests or operations whose rounds go out together."""
    one, two = await _Together([first, second])
    return cast(A, one), cast(B, two)


async def every(parts: Iterable[Awaitable[A]]) -> list[A]:
    """The answers of requests or operations whose rounds go out together, in the order of `parts`."""
    return await _Together(list(parts))


class _Together(Awaitable[list[Any]]):
    """Steps several parts in lockstep: what they ask for at the same step goes out as one round."""

    def __init__(self, parts: list[Awaitable[Any]]) -> None:
        self.parts = [cast(Generator[Round, list[Any], Any], part.__await__()) for part in parts]

    def __await__(self) -> Generator[Round, list[Any], list[Any]]:
        results: list[Any] = [None] * len(self.parts)
        waiting: dict[int, Round] = {}

        def step(number: int, answers: list[Any] | None) -> None:
            try:
                # The first step of a generator takes None.
                waiting[number] = self.parts[number].send(answers)  # type: ignore[arg-type]
            except StopIteration as stop:
                waiting.pop(number, None)
                results[number] = stop.value

        try:
            failed: Exception | None = None
            for number in range(len(self.parts)):
                # Behind an error the others begin too: what was never begun cannot be closed without a warning.
                try:
                    step(number, None)
                except Exception as error:
                    failed = failed or error
            if failed is not None:
                raise failed
            while waiting:
                answers = iter((yield tuple(request for round_ in waiting.values() for request in round_)))
                for number, round_ in list(waiting.items()):
                    step(number, [next(answers) for _ in round_])
        finally:
            # After an error, parts that wait for an answer will get none. Closing sends no request.
            for part in self.parts:
                part.close()
        return results
