"""The coroutine machinery: what is awaited together goes out in one round. And the bucket in memory is like S3."""

import gc
from collections.abc import Awaitable
from typing import Any

import pytest

from s3_saver.bucket import (
    ABSENT,
    Body,
    CreateBucket,
    Deadline,
    Delete,
    Deleted,
    Feature,
    Get,
    Has,
    HeadBucket,
    Instant,
    Late,
    List,
    Now,
    Operation,
    Put,
    Refused,
    Stored,
    Work,
    both,
    every,
)
from s3_saver.drivers.memory import MemoryBucket, MemoryDriver
from s3_saver.drivers.steps import drive
from s3_saver.errors import StoreUnavailableError


def rounds_of(operation: Operation[Any], bucket: MemoryBucket | None = None) -> list[list[str]]:
    driver = MemoryDriver(bucket)
    driver.run(operation)
    return [[getattr(request, "key", type(request).__name__) for request in round_] for round_ in driver.rounds]


async def get(*keys: str) -> list[Body | None]:
    """One round a key."""
    return [await Get(key) for key in keys]


# Rounds


def test_a_request_alone_is_a_round() -> None:
    """Requests awaited one after another go out one after another."""
    assert rounds_of(get("a", "b")) == [["a"], ["b"]]


def test_both_runs_in_lockstep() -> None:
    """What two parts ask for at the same step is one round, and a longer part goes on alone."""

    async def operation() -> Any:
        return await both(get("a", "b", "c"), Get("x"))

    assert rounds_of(operation()) == [["a", "x"], ["b"], ["c"]]


def test_every_keeps_the_order_of_its_parts() -> None:
    """Answers come in the order of the parts, whichever part ended first."""
    bucket = MemoryBucket()
    for key in "abc":
        bucket.answer(Put(key, key.encode()))

    async def last(*keys: str) -> bytes | None:
        found = (await get(*keys))[-1]
        return found and found.data

    async def operation() -> list[bytes | None]:
        return await every([last("x", "x", "a"), last("b"), last("x", "c")])

    assert MemoryDriver(bucket).run(operation()) == [b"a", b"b", b"c"]


def test_nested_parts_share_rounds() -> None:
    """Parts of parts join the rounds of the whole; answers reach the part that asked."""

    async def inner(name: str) -> str:
        one, many = await both(Put(f"{name}1", b"x"), every([Get(f"{name}2"), get(f"{name}3", f"{name}4")]))
        assert isinstance(one, Stored)
        assert len(many) == 2
        return name

    async def operation() -> Any:
        return await both(inner("a"), every([inner("b"), inner("c")]))

    driver = MemoryDriver()
    assert driver.run(operation()) == ("a", ["b", "c"])
    assert rounds_of(operation()) == [["a1", "a2", "a3", "b1", "b2", "b3", "c1", "c2", "c3"], ["a4", "b4", "c4"]]


def test_nothing_awaited_together_is_no_round() -> None:
    """`every` of nothing answers an empty list at once."""

    async def operation() -> Any:
        return await both(every([]), every([]))

    assert rounds_of(operation()) == []


def test_work_and_now_are_no_rounds() -> None:
    """Computing and looking at the clock cost no request, and beside requests they are left out of the count."""

    async def operation() -> Any:
        assert await Work(lambda: 7, 1) == 7
        began = await Now()
        seven, _ = await both(Work(lambda: 7, 1), Get("a"))
        assert seven == 7
        return began

    driver = MemoryDriver(MemoryBucket(clock_ms=5_000))
    assert driver.run(operation()) == Instant(5, 5, 5)
    assert [[type(request) for request in round_] for round_ in driver.rounds] == [[Get]]


def test_rounds_can_begin_at_the_first() -> None:
    """An operation stepped to its first round by somebody else is driven on from there."""
    bucket = MemoryBucket(objects={"a": (b"body", 0)})
    operation = get("a")
    first = operation.send(None)  # type: ignore[arg-type]
    (found,) = drive(operation, lambda round_: [bucket.answer(request) for request in round_], first)
    assert found is not None
    assert found.data == b"body"


# Errors


class Broken(MemoryBucket):
    """Fails to answer for one key."""

    def answer(self, request: Any) -> Any:
        if getattr(request, "key", None) == "broken":
            raise StoreUnavailableError("broken")
        return super().answer(request)


def test_an_error_rises_at_the_await() -> None:
    """An operation may catch what a request raised and go on."""

    async def operation() -> str:
        try:
            await both(get("a", "broken", "b"), get("x", "y", "z"))
        except StoreUnavailableError:
            await Get("after")
        return "done"

    driver = MemoryDriver(Broken())
    assert driver.run(operation()) == "done"
    keys = [[request.key for request in round_] for round_ in driver.rounds]  # type: ignore[attr-defined]
    assert keys == [["a", "x"], ["broken", "y"], ["after"]]


async def _raises() -> None:
    raise StoreUnavailableError("before any request")


async def _raises_later() -> None:
    await Get("a")
    raise StoreUnavailableError("after a request")


def _failing(raiser: Any, *, first: bool) -> Awaitable[Any]:
    """A part that raises beside nested parts that were not begun yet, or that wait for an answer."""
    others = [both(get("x", "y"), every([get("z"), get("z")])), get("x"), every([both(get("x"), get("x"))])]
    return every([raiser(), *others] if first else [*others, raiser()])


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("raiser", [_raises, _raises_later])
@pytest.mark.filterwarnings("error")
def test_an_error_closes_the_other_parts(raiser: Any, first: bool) -> None:
    """Behind an error no part goes on, and none is left unawaited."""

    async def operation() -> None:
        await _failing(raiser, first=first)

    driver = MemoryDriver()
    with pytest.raises(StoreUnavailableError):
        driver.run(operation())
    assert len(driver.rounds) == (0 if raiser is _raises else 1)
    gc.collect()


@pytest.mark.filterwarnings("error")
def test_a_closed_operation_sends_nothing() -> None:
    """An operation that is given up ends at its round, in silence."""
    operation = _sequence()
    operation.send(None)  # type: ignore[arg-type]
    operation.close()
    gc.collect()


async def _sequence() -> None:
    await both(get("a", "b"), every([get("c", "d"), both(get("e"), get("f"))]))


# The bucket in memory


@pytest.fixture
def bucket() -> MemoryBucket:
    bucket = MemoryBucket()
    for number, key in enumerate(["a/1", "a/2", "b", "a/b/3", "a~", "c/4"]):
        bucket.clock_ms = 1_000 + number
        bucket.answer(Put(key, key.encode()))
    return bucket


def keys(bucket: MemoryBucket, *request: Any, **arguments: Any) -> list[str]:
    return [item.key for item in bucket.answer(List(*request, **arguments)).keys]


def test_get(bucket: MemoryBucket) -> None:
    """A whole object, its first bytes with the size of the whole, or None."""
    whole = bucket.answer(Get("a/b/3"))
    part = bucket.answer(Get("a/b/3", first_bytes=2))
    assert (whole.data, whole.size, whole.whole) == (b"a/b/3", 5, True)
    assert (part.data, part.size, part.whole, part.etag) == (b"a/", 5, False, whole.etag)
    assert bucket.answer(Get("a/b/3", first_bytes=99)).whole
    assert bucket.answer(Get("a")) is None


def test_put(bucket: MemoryBucket) -> None:
    """A plain put overwrites; a conditional one meets what is there and changes nothing."""
    assert isinstance(bucket.answer(Put("b", b"new")), Stored)
    assert bucket.answer(Get("b")).data == b"new"
    assert bucket.answer(Put("b", b"newer", expect=ABSENT)) == Refused()
    assert bucket.answer(Get("b")).data == b"new"
    assert isinstance(bucket.answer(Put("d", b"first", expect=ABSENT)), Stored)


def test_deadline(bucket: MemoryBucket) -> None:
    """Nothing is sent after the deadline, on whichever clock it passed."""
    bucket.clock_ms = 10_000
    since = Instant(10, 10, 10)
    assert isinstance(bucket.answer(Put("d", b"x", deadline=Deadline(since, 5))), Stored)
    bucket.clock_ms = 15_000
    assert isinstance(bucket.answer(Put("d", b"y", deadline=Deadline(since, 5))), Stored)
    bucket.clock_ms = 15_001
    assert bucket.answer(Put("d", b"z", deadline=Deadline(since, 5))) == Late()
    assert bucket.answer(Get("d")).data == b"y"
    for clock in ("monotonic", "boot", "wall"):
        later = Instant(**({"monotonic": 10, "boot": 10, "wall": 10} | {clock: 16}))
        assert Deadline(since, 5).passed(later)
    assert not Deadline(since, 5).passed(Instant(14, 9, 0))


def test_no_object_is_empty() -> None:
    """A put without a body is a mistake in the code."""
    with pytest.raises(AssertionError, match="no object is ever empty"):
        Put("key", b"")


def test_delete(bucket: MemoryBucket) -> None:
    """Absent keys are no error."""
    assert bucket.answer(Delete(("a/1", "nothing"))) == Deleted({})
    assert keys(bucket, "a/") == ["a/2", "a/b/3"]


def test_list_in_order(bucket: MemoryBucket) -> None:
    """Keys come in ascending order, with the store's times; `after` and `limit` cut out a part."""
    assert keys(bucket, "") == ["a/1", "a/2", "a/b/3", "a~", "b", "c/4"]
    assert keys(bucket, "a") == ["a/1", "a/2", "a/b/3", "a~"]
    assert keys(bucket, "", after="a/2") == ["a/b/3", "a~", "b", "c/4"]
    assert keys(bucket, "", after="a/20") == ["a/b/3", "a~", "b", "c/4"]
    page = bucket.answer(List("a/", limit=2))
    assert [(item.key, item.size, item.modified_ms) for item in page.keys] == [("a/1", 3, 1_000), ("a/2", 3, 1_001)]
    assert page.keys[0].etag == bucket.answer(Get("a/1")).etag
    assert page.now_ms == bucket.clock_ms == 1_005


def test_pages(bucket: MemoryBucket) -> None:
    """A page that is not the last has a token; going on with it repeats and leaves out nothing."""
    found: list[str] = []
    page = bucket.answer(List("", limit=4))
    while True:
        found += [item.key for item in page.keys]
        if page.token is None:
            break
        assert len(page.keys) == 4
        page = bucket.answer(List("", limit=4, token=page.token))
    assert found == keys(bucket, "")
    assert bucket.answer(List("", limit=6)).token is None


def test_delimiter(bucket: MemoryBucket) -> None:
    """Keys below a folder are rolled up into it, and a folder counts as one against the limit."""
    page = bucket.answer(List("", delimiter="/"))
    assert ([item.key for item in page.keys], page.folders) == (["a~", "b"], ("a/", "c/"))
    page = bucket.answer(List("a/", delimiter="/"))
    assert ([item.key for item in page.keys], page.folders) == (["a/1", "a/2"], ("a/b/",))
    first = bucket.answer(List("", delimiter="/", limit=1))
    assert (first.keys, first.folders) == ((), ("a/",))
    second = bucket.answer(List("", delimiter="/", limit=2, token=first.token))
    assert ([item.key for item in second.keys], second.folders, second.token is None) == (["a~", "b"], (), False)


def test_directory_bucket(bucket: MemoryBucket) -> None:
    """It lists all keys below a folder, but in no order; a prefix inside a name and `after` are refused."""
    unordered = MemoryBucket(ordered=False, objects=bucket.objects)
    found: list[str] = []
    token: str | None = None
    while True:
        page = unordered.answer(List("a/", limit=2, token=token))
        found += [item.key for item in page.keys]
        token = page.token
        if token is None:
            break
    assert found != sorted(found)
    assert sorted(found) == ["a/1", "a/2", "a/b/3"]
    for wrong in (List("a"), List("a/", after="a/1")):
        with pytest.raises(AssertionError):
            unordered.answer(wrong)


def test_bucket_itself() -> None:
    """It is there, and has no features."""
    bucket = MemoryBucket()
    assert bucket.answer(HeadBucket()) is True
    assert bucket.answer(Has(Feature.VERSIONING)) is False
    assert bucket.answer(CreateBucket()) is None
    with pytest.raises(TypeError, match="no answer"):
        bucket.answer("something else")  # type: ignore[arg-type]


async def test_driver_from_a_loop() -> None:
    """The driver's async face runs an operation to its end."""
    assert await MemoryDriver().arun(get("a")) == [None]
