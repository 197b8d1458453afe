"""The requests of `s3_saver.bucket`, asked of every driver: one contract, over a dictionary and over real servers."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from aiobotocore.session import AioSession
from savers import Server, boto3_client
from scripted_store import Asked, Reply, ScriptedStore, refusal
from slow_proxy import SlowProxy

from s3_saver.bucket import (
    ABSENT,
    Body,
    Copy,
    CreateBucket,
    Deadline,
    Delete,
    Deleted,
    Expect,
    Feature,
    Get,
    Has,
    HeadBucket,
    Instant,
    Late,
    List,
    Now,
    Put,
    Refused,
    Request,
    Stored,
    Work,
    both,
    every,
)
from s3_saver.clients import AsyncClient, Connection, make_boto3_client
from s3_saver.drivers.aio import AioDriver
from s3_saver.drivers.boto import BotoDriver
from s3_saver.drivers.clock import now
from s3_saver.drivers.memory import MemoryDriver
from s3_saver.errors import SaverClosedError, StoreAccessError, StoreUnavailableError

A = TypeVar("A")
Driver = Any

# An async driver's sessions are aiobotocore's, or aioboto3's where that is installed.
ASYNC = ["aiobotocore", *(["aioboto3"] if find_spec("aioboto3") else [])]
COLOURS = ["boto3", *ASYNC]
SERVERS = {"moto": "moto_server", "seaweedfs": "seaweed"}

every_colour = pytest.mark.parametrize("colour", COLOURS)
both_colours = pytest.mark.parametrize("colour", ["boto3", "aiobotocore"])

CONCURRENCY = 8

_SETTINGS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE")


@cache
def _session(colour: str, *_: str) -> Any:
    """A session, one for all tests with the same credentials: it keeps what it found in the environment."""
    if colour == "aiobotocore":
        return AioSession()
    import aioboto3

    return aioboto3.Session()


@asynccontextmanager
async def opened(
    colour: str, url: str | None, bucket: str, *, region: str = "us-east-1", concurrency: int = CONCURRENCY
) -> AsyncIterator[Driver]:
    """A driver over a client as the package makes it, with the credentials of the environment."""
    connection = Connection(region_name=region, endpoint_url=url)
    common: dict[str, Any] = {"bucket": bucket, "put_extra_args": {}, "max_concurrency": concurrency}
    driver: Driver
    if colour == "boto3":
        driver = BotoDriver(lambda: make_boto3_client(connection, concurrency), owned=True, **common)
    else:
        session = _session(colour, *(os.environ.get(name, "") for name in _SETTINGS))
        driver = AioDriver(lambda: AsyncClient(session, connection, concurrency), **common)
    try:
        yield driver
    finally:
        await driver.aclose()


async def ask(driver: Driver, awaited: Awaitable[A]) -> A:
    """What the driver answers to one request, or to several as one round: in this thread where it can, else here."""

    async def operation() -> A:
        return await awaited

    if hasattr(driver, "run"):
        return driver.run(operation())  # type: ignore[no-any-return]
    return await driver.arun(operation())  # type: ignore[no-any-return]


def enter(monkeypatch: pytest.MonkeyPatch, access_key: str, secret_key: str) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret_key)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials, for stores that do not look at them."""
    enter(monkeypatch, "key", "secret")


@pytest.fixture
def seaweed_keys(seaweed: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """SeaweedFS, with its credentials in the environment."""
    enter(monkeypatch, seaweed.access_key, seaweed.secret_key)
    return seaweed


@pytest.fixture(params=["memory", *(f"{colour}-{server}" for colour in COLOURS for server in SERVERS)])
async def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Driver]:
    """Every driver in turn, on every store that it can run on."""
    colour, _, name = request.param.partition("-")
    if colour == "memory":
        yield MemoryDriver()
        return
    server = request.getfixturevalue(SERVERS[name])
    if colour == "boto3":
        # One client for all tests, since making one takes long.
        client, extra = boto3_client(server), {}
        made = BotoDriver(
            lambda: client, owned=False, bucket=server.bucket, put_extra_args=extra, max_concurrency=CONCURRENCY
        )
        yield made
        made.close()
        return
    enter(monkeypatch, server.access_key, server.secret_key)
    async with opened(colour, server.endpoint_url, server.bucket) as made:
        yield made


# Objects


async def test_get_gives_what_was_put(driver: Driver, prefix: str) -> None:
    """A whole object comes with its size and the ETag that storing it gave."""
    stored = await ask(driver, Put(f"{prefix}/a", b"hello"))
    assert isinstance(stored, Stored)
    found = await ask(driver, Get(f"{prefix}/a"))
    assert found == Body(b"hello", 5, stored.etag)
    assert found.whole


async def test_get_gives_the_first_bytes(driver: Driver, prefix: str) -> None:
    """The first bytes come with the size of the whole and its ETag; asking for too many is no error."""
    stored = await ask(driver, Put(f"{prefix}/a", b"0123456789"))
    assert isinstance(stored, Stored)
    part = await ask(driver, Get(f"{prefix}/a", first_bytes=4))
    assert part == Body(b"0123", 10, stored.etag)
    assert not part.whole
    assert await ask(driver, Get(f"{prefix}/a", first_bytes=10)) == Body(b"0123456789", 10, stored.etag)
    assert await ask(driver, Get(f"{prefix}/a", first_bytes=99)) == Body(b"0123456789", 10, stored.etag)


async def test_get_of_nothing_is_none(driver: Driver, prefix: str) -> None:
    """An absent object is an answer, whole or in part."""
    assert await ask(driver, Get(f"{prefix}/absent")) is None
    assert await ask(driver, Get(f"{prefix}/absent", first_bytes=100)) is None


async def test_large_objects_come_back_whole(driver: Driver, prefix: str) -> None:
    """Bytes of every value, more of them than fit into one packet."""
    data = bytes(range(256)) * 4096
    await ask(driver, Put(f"{prefix}/large", data))
    found = await ask(driver, Get(f"{prefix}/large"))
    assert found is not None
    assert found.data == data


async def test_put_overwrites_unless_told(driver: Driver, prefix: str) -> None:
    """A plain put replaces; a put that expects nothing there is refused and changes nothing."""
    key = f"{prefix}/a"
    first = await ask(driver, Put(key, b"one", expect=ABSENT))
    assert isinstance(first, Stored)
    assert await ask(driver, Put(key, b"two", expect=ABSENT)) == Refused()
    assert await ask(driver, Get(key)) == Body(b"one", 3, first.etag)
    second = await ask(driver, Put(key, b"three"))
    assert isinstance(second, Stored)
    assert await ask(driver, Get(key)) == Body(b"three", 5, second.etag)


async def test_put_after_its_deadline_is_late(driver: Driver, prefix: str) -> None:
    """A put whose deadline has passed stores nothing; with time left it stores."""
    began = await ask(driver, Now())
    past = Instant(began.monotonic - 10, began.boot - 10, began.wall - 10)
    assert await ask(driver, Put(f"{prefix}/a", b"late", deadline=Deadline(past, 5))) == Late()
    assert await ask(driver, Get(f"{prefix}/a")) is None
    assert isinstance(await ask(driver, Put(f"{prefix}/a", b"timely", deadline=Deadline(past, 3600))), Stored)


async def test_one_of_many_conditional_puts_wins(driver: Driver, prefix: str) -> None:
    """Of eight puts at once that all expect nothing there, one stores; its bytes are what is read."""
    bodies = [f"writer {number}".encode() for number in range(8)]
    answers = await ask(driver, every(Put(f"{prefix}/a", body, expect=ABSENT) for body in bodies))
    winners = [body for body, answer in zip(bodies, answers, strict=True) if isinstance(answer, Stored)]
    found = await ask(driver, Get(f"{prefix}/a"))
    assert found is not None
    assert winners == [found.data]


async def test_odd_keys(driver: Driver, prefix: str) -> None:
    """Keys with percent signs, tildes and equals signs, as the archive's have, are listed and found as they are."""
    names = ["thread_id=a%2Fb/checkpoint_ns=~/x", "thread_id=%C3%A9%20%2B/y", "thread_id=~0123/_values/z.bin"]
    keys = [f"{prefix}/{name}" for name in names]
    await ask(driver, every(Put(key, key.encode()) for key in keys))
    page = await ask(driver, List(f"{prefix}/"))
    assert {listed.key for listed in page.keys} == set(keys)
    bodies = await ask(driver, every(Get(key) for key in keys))
    assert [body and body.data for body in bodies] == [key.encode() for key in keys]
    await ask(driver, Delete(tuple(keys)))
    assert (await ask(driver, List(f"{prefix}/"))).keys == ()


# Listings


async def _fill(driver: Driver, prefix: str, names: list[str]) -> None:
    await ask(driver, every(Put(f"{prefix}/{name}", name.encode()) for name in names))


async def _listed(driver: Driver, prefix: str, **query: Any) -> list[str]:
    """The names below `prefix` in one page, in the store's order."""
    page = await ask(driver, List(f"{prefix}/", **query))
    return [listed.key.removeprefix(f"{prefix}/") for listed in page.keys]


async def test_listing_says_all_of_an_object(driver: Driver, prefix: str) -> None:
    """Key, size and ETag are the object's; its time is the store's clock, and so is the page's."""
    before = await ask(driver, List(f"{prefix}/"))
    stored = await ask(driver, Put(f"{prefix}/a", b"hello"))
    assert isinstance(stored, Stored)
    page = await ask(driver, List(f"{prefix}/"))
    (listed,) = page.keys
    assert (listed.key, listed.size, listed.etag) == (f"{prefix}/a", 5, stored.etag)
    # The header Date has whole seconds, and so may LastModified.
    assert before.now_ms - 1000 <= listed.modified_ms <= page.now_ms + 1000
    clock_ms = (await ask(driver, Now())).wall * 1000
    assert abs(page.now_ms - clock_ms) < 60_000


async def test_empty_listing(driver: Driver, prefix: str) -> None:
    """Where nothing is, there is an empty page and no token."""
    page = await ask(driver, List(f"{prefix}/"))
    assert (page.keys, page.folders, page.token) == ((), (), None)


async def test_a_folder_is_listed_in_bytewise_order(driver: Driver, prefix: str) -> None:
    """Keys of one folder come in the order of their bytes, capitals and signs included."""
    names = ["_checkpoint.msgpack", "writes-0009", "writes-0010", "B", "a", "a.b", "~", "0z", "00z"]
    await _fill(driver, prefix, names)
    assert await _listed(driver, prefix) == sorted(names)


async def test_pages_follow_each_other(driver: Driver, prefix: str) -> None:
    """Pages of at most `limit` keys lead by their tokens to the end, with every key once."""
    names = [f"{number:02}" for number in range(11)]
    await _fill(driver, prefix, names)
    found: list[str] = []
    token: str | None = None
    sizes = []
    while True:
        page = await ask(driver, List(f"{prefix}/", limit=4, token=token))
        found += [listed.key.removeprefix(f"{prefix}/") for listed in page.keys]
        sizes.append(len(page.keys))
        token = page.token
        if token is None:
            break
    assert found == names
    assert sizes == [4, 4, 3]


async def test_a_full_last_page_ends_the_listing(driver: Driver, prefix: str) -> None:
    """Where the limit is the number of keys there is no next page, or an empty one."""
    await _fill(driver, prefix, ["a", "b"])
    page = await ask(driver, List(f"{prefix}/", limit=2))
    assert len(page.keys) == 2
    if page.token is not None:
        last = await ask(driver, List(f"{prefix}/", limit=2, token=page.token))
        assert (last.keys, last.token) == ((), None)


async def test_listing_begins_after_a_key(driver: Driver, prefix: str) -> None:
    """What comes up to `after` is left out, whether that key exists or not."""
    await _fill(driver, prefix, ["a", "c", "e"])
    assert await _listed(driver, prefix, after=f"{prefix}/c") == ["e"]
    assert await _listed(driver, prefix, after=f"{prefix}/b") == ["c", "e"]
    assert await _listed(driver, prefix, after=f"{prefix}/b", limit=1) == ["c"]
    assert await _listed(driver, prefix, after=f"{prefix}/z") == []


async def test_listing_begins_between_folders(driver: Driver, prefix: str) -> None:
    """`after` may name a place between two folders, inside none that is there."""
    await _fill(driver, prefix, ["x.1/_c", "x.1/w", "y.2/_c", "y.2/w", "z.3/_c"])
    rest = ["y.2/_c", "y.2/w", "z.3/_c"]
    assert await _listed(driver, prefix, after=f"{prefix}/x.1/~") == rest
    assert await _listed(driver, prefix, after=f"{prefix}/xx/~") == rest
    assert await _listed(driver, prefix, after=f"{prefix}/y.2/_c") == rest[1:]
    assert await _listed(driver, prefix, after=f"{prefix}/y.2/~", limit=2) == ["z.3/_c"]


async def test_pages_after_a_key_follow_each_other(driver: Driver, prefix: str) -> None:
    """A token leads on from a page that began after a key."""
    await _fill(driver, prefix, [f"{number}/_c" for number in range(6)])
    first = await ask(driver, List(f"{prefix}/", after=f"{prefix}/1/~", limit=2))
    second = await ask(driver, List(f"{prefix}/", token=first.token, limit=9))
    found = [listed.key.removeprefix(f"{prefix}/") for listed in (*first.keys, *second.keys)]
    assert found == ["2/_c", "3/_c", "4/_c", "5/_c"]
    assert second.token is None


async def test_folders(driver: Driver, prefix: str) -> None:
    """With a delimiter, what lies deeper is named once, as a folder, with the delimiter at its end."""
    await _fill(driver, prefix, ["a/1", "a/2", "b/c/3", "top"])
    page = await ask(driver, List(f"{prefix}/", delimiter="/"))
    assert page.folders == (f"{prefix}/a/", f"{prefix}/b/")
    assert [listed.key for listed in page.keys] == [f"{prefix}/top"]


async def test_pages_of_folders_follow_each_other(driver: Driver, prefix: str) -> None:
    """Folders count against the limit, and a token leads to the next ones."""
    await _fill(driver, prefix, [f"f{number}/{name}" for number in range(5) for name in "xy"])
    found: list[str] = []
    token: str | None = None
    for _ in range(10):
        page = await ask(driver, List(f"{prefix}/", delimiter="/", limit=2, token=token))
        assert len(page.folders) <= 2
        found += page.folders
        token = page.token
        if token is None:
            break
    assert found == [f"{prefix}/f{number}/" for number in range(5)]


async def test_a_prefix_need_not_be_a_folder(driver: Driver, prefix: str) -> None:
    """A listing by the first letters of a name gives those names only."""
    await _fill(driver, prefix, ["writes-1", "writes-2", "_checkpoint", "wrongs"])
    page = await ask(driver, List(f"{prefix}/writes-"))
    assert [listed.key for listed in page.keys] == [f"{prefix}/writes-1", f"{prefix}/writes-2"]


# Deletions


async def test_delete(driver: Driver, prefix: str) -> None:
    """The named keys are gone and others stay; a key that is not there is no error."""
    await _fill(driver, prefix, ["a", "b", "c"])
    await ask(driver, Delete((f"{prefix}/a", f"{prefix}/absent", f"{prefix}/c")))
    assert await _listed(driver, prefix) == ["b"]
    await ask(driver, Delete((f"{prefix}/a",)))
    assert await _listed(driver, prefix) == ["b"]


async def test_delete_takes_a_thousand_keys(driver: Driver, prefix: str) -> None:
    """As many keys as a request may name go in one request."""
    await _fill(driver, prefix, ["000", "500", "999"])
    await ask(driver, Delete(tuple(f"{prefix}/{number:03}" for number in range(1000))))
    assert await _listed(driver, prefix) == []


async def test_delete_after_its_deadline_is_late(driver: Driver, prefix: str) -> None:
    """A deletion whose deadline has passed deletes nothing; with time left it deletes."""
    await _fill(driver, prefix, ["a"])
    began = await ask(driver, Now())
    past = Instant(began.monotonic - 10, began.boot - 10, began.wall - 10)
    assert await ask(driver, Delete((f"{prefix}/a",), deadline=Deadline(past, 5))) == Late()
    assert await _listed(driver, prefix) == ["a"]
    assert await ask(driver, Delete((f"{prefix}/a",), deadline=Deadline(past, 3600))) == Deleted({})
    assert await _listed(driver, prefix) == []


# Copies


async def test_copy(driver: Driver, prefix: str) -> None:
    """A copy has the source's bytes, replaces what was there, and leaves the source alone."""
    source, key = f"{prefix}/thread_id=a%2Fb/~", f"{prefix}/thread_id=%C3%A9/~"
    await ask(driver, every([Put(source, b"one"), Put(key, b"other")]))
    copied = await ask(driver, Copy(source, key))
    assert isinstance(copied, Stored)
    assert await ask(driver, Get(key)) == Body(b"one", 3, copied.etag)
    found = await ask(driver, Get(source))
    assert found is not None
    assert found.data == b"one"


async def test_copy_of_nothing_is_none(driver: Driver, prefix: str) -> None:
    """An absent source is an answer, and what was at the target stays."""
    await ask(driver, Put(f"{prefix}/b", b"stays"))
    assert await ask(driver, Copy(f"{prefix}/absent", f"{prefix}/b")) is None
    found = await ask(driver, Get(f"{prefix}/b"))
    assert found is not None
    assert found.data == b"stays"


# The bucket, clocks and computing


async def test_bucket(driver: Driver) -> None:
    """The bucket is there, creating it again is no error, and it has neither versions nor locks."""
    assert await ask(driver, HeadBucket()) is True
    assert await ask(driver, CreateBucket()) is None
    assert not await ask(driver, Has(Feature.VERSIONING))
    assert not await ask(driver, Has(Feature.OBJECT_LOCK))


async def test_now_moves_on(driver: Driver) -> None:
    """Time never runs backwards between two looks at the clocks."""
    first, second = await ask(driver, Now()), await ask(driver, Now())
    assert first.seconds_until(second) >= 0


@pytest.mark.parametrize("size", [10, 10_000_000])
async def test_work_gives_its_result_and_its_error(driver: Driver, size: int) -> None:
    """What is computed, or raised, comes back at the await, whether the work is small or large."""
    assert await ask(driver, Work(lambda: 6 * 7, size)) == 42
    with pytest.raises(ZeroDivisionError):
        await ask(driver, Work(lambda: 1 / 0, size))


async def test_a_round_mixes_requests_and_work(driver: Driver, prefix: str) -> None:
    """Answers of one round come in the order of what was asked."""
    await ask(driver, Put(f"{prefix}/a", b"x"))
    page, (body, result) = await ask(driver, both(List(f"{prefix}/"), both(Get(f"{prefix}/a"), Work(lambda: 1, 9))))
    assert [listed.key for listed in page.keys] == [f"{prefix}/a"]
    assert body is not None
    assert (body.data, result) == (b"x", 1)


async def test_an_operation_may_catch_an_error(driver: Driver, prefix: str) -> None:
    """An error rises at the await, where the operation can handle it and go on."""

    def fail() -> None:
        raise LookupError

    async def operation() -> Any:
        try:
            await Work(fail, 1)
        except LookupError:
            return await Get(f"{prefix}/absent")

    assert await ask(driver, operation()) is None


# What only real stores have


@every_colour
async def test_bucket_that_has_versions(
    colour: str, moto_server: Server, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """A bucket's features are told apart; a missing bucket is told from one that is there, and can be created."""
    enter(monkeypatch, "key", "secret")
    name = f"versioned-{colour}-{abs(hash(prefix)) % 10**8}"
    async with opened(colour, moto_server.endpoint_url, name) as driver:
        assert await ask(driver, HeadBucket()) is False
        await ask(driver, CreateBucket())
        assert await ask(driver, HeadBucket()) is True
        assert await ask(driver, Has(Feature.VERSIONING)) is False
        client = make_boto3_client(Connection("us-east-1", moto_server.endpoint_url), 1)
        client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        client.close()
        assert await ask(driver, Has(Feature.VERSIONING)) is True
        assert await ask(driver, Has(Feature.OBJECT_LOCK)) is False


@every_colour
async def test_bucket_in_another_region(
    colour: str, moto_server: Server, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """A bucket is created in the client's region, which S3 wants named where it is not us-east-1."""
    enter(monkeypatch, "key", "secret")
    name = f"regional-{colour}-{abs(hash(prefix)) % 10**8}"
    async with opened(colour, moto_server.endpoint_url, name, region="eu-central-1") as driver:
        await ask(driver, CreateBucket())
        assert await ask(driver, HeadBucket()) is True


@both_colours
async def test_somebody_elses_bucket(colour: str, keys: None) -> None:
    """A name that another account has is an error of access, not one that trying again would help."""
    with ScriptedStore(lambda asked: refusal(409, "BucketAlreadyExists")) as store:
        async with opened(colour, store.url, "taken") as driver:
            with pytest.raises(StoreAccessError, match="'taken'.*BucketAlreadyExists"):
                await ask(driver, CreateBucket())
        assert len(store.requests) == 1


@pytest.mark.parametrize("colour", ASYNC)
async def test_large_work_leaves_the_loop_free(colour: str, seaweed_keys: Server) -> None:
    """Small work runs in the loop's thread, where handing it over would cost more; large work in another."""
    async with opened(colour, seaweed_keys.endpoint_url, seaweed_keys.bucket) as driver:
        assert await ask(driver, Work(threading.get_ident, 100)) == threading.get_ident()
        assert await ask(driver, Work(threading.get_ident, 1_000_000)) != threading.get_ident()


@every_colour
async def test_a_large_round_is_bounded(colour: str, seaweed_keys: Server, prefix: str) -> None:
    """A round of 200 requests goes out in parallel, at most `max_concurrency` at once."""
    with SlowProxy(seaweed_keys.endpoint_url, latency_ms=10) as proxy:
        async with opened(colour, proxy.url, seaweed_keys.bucket) as driver:
            answers = await ask(driver, every(Get(f"{prefix}/{number}") for number in range(200)))
        assert answers == [None] * 200
        assert 1 < proxy.in_flight_max <= CONCURRENCY


@both_colours
async def test_operations_share_the_bound(colour: str, seaweed_keys: Server, prefix: str) -> None:
    """Rounds of several operations at once do not add up to more requests than `max_concurrency`."""

    async def operation(number: int) -> list[Body | None]:
        return await every(Get(f"{prefix}/{number}/{part}") for part in range(10))

    with SlowProxy(seaweed_keys.endpoint_url, latency_ms=10) as proxy:
        async with opened(colour, proxy.url, seaweed_keys.bucket) as driver:
            await asyncio.gather(*(driver.arun(operation(number)) for number in range(10)))
        assert len(proxy.requests) == 100
        assert proxy.in_flight_max <= CONCURRENCY


@both_colours
async def test_a_round_ends_before_its_error_rises(colour: str, keys: None) -> None:
    """When an error rises, nothing of its round is in flight any more."""

    def answer(asked: Asked) -> Reply:
        return refusal(403, "AccessDenied") if "bad" in asked.path else refusal(404, "NoSuchKey", delay_seconds=0.4)

    with ScriptedStore(answer) as store:
        async with opened(colour, store.url, "bucket") as driver:
            with pytest.raises(StoreAccessError, match="reading bad"):
                await ask(driver, every(Get(key) for key in ("slow-1", "bad", "slow-2", "slow-3")))
            assert len(store.requests) == 4
            assert store.in_flight == 0


@both_colours
async def test_after_closing_nothing_is_sent(colour: str, keys: None) -> None:
    """A closed driver refuses, at once, rounds of one and of several."""
    with ScriptedStore(lambda asked: refusal(404, "NoSuchKey")) as store:
        async with opened(colour, store.url, "bucket") as driver:
            assert await ask(driver, Get("a")) is None
            await driver.aclose()
            for asked in (Get("a"), every([Get("a"), Get("b")])):
                with pytest.raises(SaverClosedError):
                    await ask(driver, asked)
        assert len(store.requests) == 1


# Errors: each says what was being done, to which key, in which bucket, and what to do

REQUESTS: dict[str, Request[Any]] = {
    "reading a/key": Get("a/key"),
    "storing a/key": Put("a/key", b"x", expect=ABSENT),
    "listing a/": List("a/"),
    "copying a/key": Copy("a/key", "b/key"),
    "deleting 1 keys from a/key on": Delete(("a/key",)),
    "creating": CreateBucket(),
    "asking about": HeadBucket(),
}


async def _failures(driver: Driver, names: list[str]) -> dict[str, Any]:
    """How each request fails, asked of the driver all at once."""

    async def operation(request: Request[Any]) -> Any:
        return await request

    asked = (driver.arun(operation(REQUESTS[name])) for name in names)
    return dict(zip(names, await asyncio.gather(*asked, return_exceptions=True), strict=True))


def _assert_clear(failures: dict[str, Any], kind: type[Exception], *hints: str) -> None:
    for name, failure in failures.items():
        assert isinstance(failure, kind), (name, failure)
        assert failure.__cause__ is not None
        for part in (name, *hints):
            assert part in str(failure)


@every_colour
@pytest.mark.parametrize("server", SERVERS)
async def test_missing_bucket(
    colour: str, server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every request but those about the bucket itself raises an error that names it and says how to create it."""
    there: Server = request.getfixturevalue(SERVERS[server])
    enter(monkeypatch, there.access_key, there.secret_key)
    async with opened(colour, there.endpoint_url, "no-such-bucket") as driver:
        names = [name for name in REQUESTS if name not in ("creating", "asking about")]
        failures = await _failures(driver, names)
        _assert_clear(failures, StoreAccessError, "there is no bucket 'no-such-bucket'", "setup(create_bucket=True)")


@every_colour
async def test_wrong_credentials(colour: str, seaweed: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that refuses the credentials raises an error that says so, names the bucket, and is not retried."""
    enter(monkeypatch, seaweed.access_key, "wrong")
    with SlowProxy(seaweed.endpoint_url, latency_ms=0) as proxy:
        async with opened(colour, proxy.url, seaweed.bucket) as driver:
            failures = await _failures(driver, list(REQUESTS))
            _assert_clear(failures, StoreAccessError, f"'{seaweed.bucket}'", "check the credentials")
        assert len(proxy.requests) == len(REQUESTS)


@every_colour
async def test_no_credentials(colour: str, keys: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials nothing is sent; the error says where they may be set."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with ScriptedStore(lambda asked: Reply(500)) as store:
        async with opened(colour, store.url, "some-bucket") as driver:
            failures = await _failures(driver, list(REQUESTS))
            _assert_clear(failures, StoreAccessError, "'some-bucket'", "AWS_ACCESS_KEY_ID")
        assert store.requests == []


@every_colour
async def test_store_that_cannot_be_reached(colour: str, keys: None) -> None:
    """A closed port raises, after a few seconds of trying, an error that says that trying again is safe."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, so that nobody else takes it, and not listening
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        began = time.monotonic()
        async with opened(colour, url, "some-bucket") as driver:
            failures = await _failures(driver, list(REQUESTS))
            _assert_clear(failures, StoreUnavailableError, "'some-bucket'", url, "try again")
        assert time.monotonic() - began < 30


@every_colour
async def test_endpoint_that_is_no_url(colour: str, keys: None) -> None:
    """An endpoint that is none is a wrong call, found out before anything is sent."""
    async with opened(colour, "nowhere", "some-bucket") as driver:
        with pytest.raises(ValueError, match="nowhere"):
            await ask(driver, Get("a"))


@both_colours
async def test_wrong_configuration(colour: str, keys: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile that does not exist raises an error that names it, whichever driver was to connect with it."""
    monkeypatch.setenv("AWS_PROFILE", "no-such-profile")
    async with opened(colour, "http://127.0.0.1:9", "some-bucket") as driver:
        failures = await _failures(driver, list(REQUESTS))
        _assert_clear(failures, StoreAccessError, "'some-bucket'", "no-such-profile", "configuration")


# What passes by itself


FAULTS: dict[str, Callable[[SlowProxy, str], None]] = {
    "503": lambda proxy, op: proxy.fail(op=op, status=503),
    "500": lambda proxy, op: proxy.fail(op=op, status=500),
    "409": lambda proxy, op: proxy.fail(op=op, status=409),
    "lost": lambda proxy, op: proxy.lose_answer(op=op),
}
OPERATIONS = ("PutObject", "CopyObject", "GetObject", "ListObjectsV2", "DeleteObjects", "HeadBucket")


@every_colour
async def test_passing_trouble_is_retried(colour: str, seaweed_keys: Server, prefix: str) -> None:
    """A refusal to serve, a conflict of two puts and a lost answer are tried again, each for every kind of request."""

    async def life_of(key: str) -> None:
        assert isinstance(await Put(key, b"x"), Stored)
        assert isinstance(await Copy(key, f"{key}/copy"), Stored)
        assert (await Get(f"{key}/copy")) is not None
        assert len((await List(key)).keys) == 2
        await Delete((key,))
        assert await HeadBucket() is True
        assert await Get(key) is None

    async def under(fault: str) -> None:
        with SlowProxy(seaweed_keys.endpoint_url, latency_ms=0) as proxy:
            for op in OPERATIONS:
                FAULTS[fault](proxy, op)
            async with opened(colour, proxy.url, seaweed_keys.bucket) as driver:
                await driver.arun(life_of(f"{prefix}/{fault}"))
            counts = proxy.operations()
            assert counts == dict.fromkeys(OPERATIONS, 2) | {"GetObject": 3}

    await asyncio.gather(*(under(fault) for fault in FAULTS))


@every_colour
async def test_lost_answer_to_a_conditional_put_is_a_refusal(colour: str, seaweed_keys: Server, prefix: str) -> None:
    """The second try meets what the first has stored: a refusal, which says nothing of whose object it is."""
    with SlowProxy(seaweed_keys.endpoint_url, latency_ms=0) as proxy:
        async with opened(colour, proxy.url, seaweed_keys.bucket) as driver:
            proxy.lose_answer(op="PutObject")
            assert await ask(driver, Put(f"{prefix}/a", b"mine", expect=ABSENT)) == Refused()
            found = await ask(driver, Get(f"{prefix}/a"))
            assert found is not None
            assert found.data == b"mine"


@both_colours
async def test_lasting_trouble_is_given_up(colour: str, keys: None) -> None:
    """What does not pass is given up after a bounded number of tries, with an error that says what it was."""
    with ScriptedStore(lambda asked: refusal(503, "SlowDown")) as store:
        async with opened(colour, store.url, "some-bucket") as driver:
            failures = await _failures(driver, ["reading a/key"])
            _assert_clear(failures, StoreUnavailableError, "'some-bucket'", "SlowDown", "try again")
        assert 2 <= len(store.requests) <= 25


@both_colours
async def test_conflict_of_two_puts_is_given_up(colour: str, keys: None) -> None:
    """A conflict that never ends is no refusal: the put's outcome is unknown."""
    with ScriptedStore(lambda asked: refusal(409, "ConditionalRequestConflict")) as store:
        async with opened(colour, store.url, "some-bucket") as driver:
            failures = await _failures(driver, ["storing a/key"])
            _assert_clear(failures, StoreUnavailableError, "'some-bucket'", "ConditionalRequestConflict")
        assert 2 <= len(store.requests) <= 25


@every_colour
async def test_a_body_that_breaks_off_is_read_again(colour: str, keys: None) -> None:
    """Half of a body is never taken for the whole."""
    data = bytes(range(256)) * 100

    def answer(asked: Asked) -> Reply:
        return Reply(200, data, {"ETag": '"e"'}, breaks_off=asked.number < 2)

    with ScriptedStore(answer) as store:
        async with opened(colour, store.url, "bucket") as driver:
            assert await ask(driver, Get("key")) == Body(data, len(data), '"e"')
        assert len(store.requests) == 3


@every_colour
async def test_bodies_that_always_break_off_are_given_up(colour: str, keys: None) -> None:
    """A store that never gives a whole body is unavailable."""
    with ScriptedStore(lambda asked: Reply(200, b"0123456789", {"ETag": '"e"'}, breaks_off=True)) as store:
        async with opened(colour, store.url, "some-bucket") as driver:
            failures = await _failures(driver, ["reading a/key"])
            _assert_clear(failures, StoreUnavailableError, "'some-bucket'", "try again")
        assert len(store.requests) == 5


@every_colour
async def test_a_put_proves_its_body(colour: str, keys: None) -> None:
    """Each put carries its body's digest: without one, SeaweedFS stores an empty object where a client goes away."""
    headers: list[str | None] = []

    def answer(asked: Asked) -> Reply:
        headers.append(asked.headers["Content-MD5"])
        return Reply(200, b"", {"ETag": '"e"'})

    with ScriptedStore(answer) as store:
        async with opened(colour, store.url, "bucket") as driver:
            await ask(driver, every(Put("key", b"hello", expect=expect) for expect in Expect))
        assert headers == ["XUFAKrxLKna5cZ2REBfFkg=="] * 2
        assert {asked.body for asked in store.requests} == {b"hello"}


@pytest.mark.parametrize("driver", [f"boto3-{server}" for server in SERVERS], indirect=True)
async def test_an_upload_that_breaks_off_stores_nothing(driver: Driver, prefix: str) -> None:
    """A client that goes away between the head of a put and its body leaves nothing under the key."""
    client = driver._connected()

    def break_off(request: Any, **_: Any) -> None:
        address = urlsplit(request.url)
        lines = [f"PUT {address.path} HTTP/1.1", f"Host: {address.netloc}"]
        lines += [f"{name}: {_text(value)}" for name, value in request.headers.items()]
        with socket.create_connection((address.hostname or "", address.port or 80)) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            connection.recv(1000)  # the 100 that asks for the body
        raise InterruptedError

    client.meta.events.register_first("before-send.s3.PutObject", break_off, unique_id="break-off")
    try:
        with pytest.raises(InterruptedError):
            await ask(driver, Put(f"{prefix}/key", b"hello", expect=ABSENT))
    finally:
        client.meta.events.unregister("before-send.s3.PutObject", unique_id="break-off")
    await asyncio.sleep(0.2)
    assert await ask(driver, Get(f"{prefix}/key")) is None
    assert isinstance(await ask(driver, Put(f"{prefix}/key", b"hello", expect=ABSENT)), Stored)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _deletion(*failed: tuple[str, str]) -> Reply:
    errors = "".join(
        f"<Error><Key>{key}</Key><Code>{code}</Code><Message>why</Message></Error>" for key, code in failed
    )
    return Reply(200, f"<DeleteResult>{errors}</DeleteResult>".encode(), {"Content-Type": "application/xml"})


@both_colours
async def test_keys_that_could_not_be_deleted_are_named(colour: str, keys: None) -> None:
    """The store answers 200 and reports each key that stayed: all of them are in the answer."""
    reply = _deletion(("a", "AccessDenied"), ("b", "InternalError"), ("gone", "NoSuchKey"))
    with ScriptedStore(lambda asked: reply) as store:
        async with opened(colour, store.url, "bucket") as driver:
            answer = await ask(driver, Delete(("a", "b", "gone", "c")))
    assert answer == Deleted({"a": "AccessDenied: why", "b": "InternalError: why"})


@both_colours
async def test_keys_to_be_deleted_later_are_asked_again(colour: str, keys: None) -> None:
    """Keys that failed for the moment only are deleted by asking again; absent ones are none of them."""
    replies = [_deletion(("a", "InternalError"), ("b", "SlowDown")), _deletion(("a", "NoSuchKey"))]
    with ScriptedStore(lambda asked: replies[asked.number]) as store:
        async with opened(colour, store.url, "bucket") as driver:
            await ask(driver, Delete(("a", "b")))
        assert len(store.requests) == 2


@both_colours
async def test_keys_that_never_go_are_given_up(colour: str, keys: None) -> None:
    """When asking again does not help, the answer names what stayed."""
    with ScriptedStore(lambda asked: _deletion(("a", "SlowDown"))) as store:
        async with opened(colour, store.url, "bucket") as driver:
            assert await ask(driver, Delete(("a", "b"))) == Deleted({"a": "SlowDown: why"})
        assert len(store.requests) == 5


# Deadlines


@pytest.fixture(params=[503, 409])
def slow_refusal(request: pytest.FixtureRequest, keys: None) -> Iterator[ScriptedStore]:
    """A store that lets 0.3 s pass and then asks to try again: 503 to the client, 409 to the driver."""
    code = {503: "SlowDown", 409: "ConditionalRequestConflict"}[request.param]

    def answer(asked: Asked) -> Reply:
        if asked.number == 0:
            return refusal(request.param, code, delay_seconds=0.3)
        return Reply(200, b"", {"ETag": '"e"'})

    with ScriptedStore(answer) as store:
        yield store


@every_colour
async def test_no_retry_is_signed_after_the_deadline(colour: str, slow_refusal: ScriptedStore) -> None:
    """A first try in time is sent; the deadline passes meanwhile, so the second is not."""
    async with opened(colour, slow_refusal.url, "bucket") as driver:
        await ask(driver, HeadBucket())  # connecting takes time, too
        answer = await ask(driver, Put("key", b"x", deadline=Deadline(now(), 0.2)))
        assert answer == Late()
    assert [asked.method for asked in slow_refusal.requests if asked.method == "PUT"] == ["PUT"]


@every_colour
async def test_a_retry_in_time_is_sent(colour: str, slow_refusal: ScriptedStore) -> None:
    """With time left a refused try is followed by another."""
    async with opened(colour, slow_refusal.url, "bucket") as driver:
        assert await ask(driver, Put("key", b"x", deadline=Deadline(now(), 60))) == Stored('"e"')
    assert len(slow_refusal.requests) == 2


@every_colour
async def test_a_late_put_sends_nothing(colour: str, keys: None) -> None:
    """A put whose deadline has passed costs no request, and does not disturb others of its round."""
    with ScriptedStore(lambda asked: Reply(200, b"", {"ETag": '"e"'})) as store:
        async with opened(colour, store.url, "bucket") as driver:
            late = Deadline(Instant(0, 0, 0), 1)
            answers = await ask(
                driver, every([Put("late", b"x", deadline=late), Put("timely", b"x"), Put("late", b"x", deadline=late)])
            )
            assert answers == [Late(), Stored('"e"'), Late()]
        assert [asked.path for asked in store.requests] == ["/bucket/timely"]


@both_colours
async def test_closing_one_driver_leaves_the_deadlines_of_another(
    colour: str, moto_server: Server, prefix: str
) -> None:
    """Two drivers share an injected client; when one of them is closed, the other still holds puts to deadlines."""
    common: dict[str, Any] = {"bucket": moto_server.bucket, "put_extra_args": {}, "max_concurrency": 1}
    late = Put(f"{prefix}/late", b"x", deadline=Deadline(Instant(0, 0, 0), 1))
    async with _injected(colour, moto_server) as client:
        drivers = [
            BotoDriver(lambda: client, owned=False, **common)
            if colour == "boto3"
            else AioDriver(_not_called, client=client, **common)
            for _ in range(2)
        ]
        for driver in drivers:
            assert await ask(driver, late) == Late()
        await drivers[0].aclose()
        assert await ask(drivers[1], late) == Late()
        await drivers[1].aclose()


def _not_called() -> Any:
    raise AssertionError("an injected client is there")


@asynccontextmanager
async def _injected(colour: str, server: Server) -> AsyncIterator[Any]:
    arguments = {
        "endpoint_url": server.endpoint_url,
        "aws_access_key_id": server.access_key,
        "aws_secret_access_key": server.secret_key,
        "region_name": server.region,
    }
    if colour == "boto3":
        import boto3

        client = boto3.client("s3", **arguments)
        yield client
        client.close()
    else:
        async with AioSession().create_client("s3", **arguments) as client:
            yield client
