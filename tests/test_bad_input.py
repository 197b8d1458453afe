"""Bad input is refused before any request, with an error that names the argument and leaks no secret."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kit import checkpoint, config, whole_thread
from memory_saver import MemorySaver

from manifests.keys import ID_BYTES_MAX, PREFIX_BYTES_MAX, Layout
from s3_saver import AsyncS3Saver, S3Saver
from s3_saver.settings import from_conn_string

SURROGATE = "a\ud800b"
LONG_ID = "i" * (ID_BYTES_MAX + 1)

# Configs that are refused, by what is wrong with them: the error, and what its message names.
CONFIGS: dict[str, tuple[Any, type[Exception], str]] = {
    "no thread id": ({"configurable": {}}, KeyError, "thread_id"),
    "only a namespace": ({"configurable": {"checkpoint_ns": ""}}, KeyError, "thread_id"),
    "no configurable": ({"metadata": {}}, KeyError, "thread_id"),
    "configurable of a wrong type": ({"configurable": "t"}, TypeError, "config"),
    "no dict": ("t", TypeError, "config"),
    "thread id None": (config(None), ValueError, "thread_id"),
    "thread id of a wrong type": (config(1.5), ValueError, "thread_id"),
    "thread id bool": (config(True), ValueError, "thread_id"),
    "thread id bytes": (config(b"t"), ValueError, "thread_id"),
    "thread id list": (config(["t"]), ValueError, "thread_id"),
    "thread id with a lone surrogate": (config(SURROGATE), ValueError, "thread_id"),
    "namespace of a wrong type": (whole_thread(checkpoint_ns=1), ValueError, "checkpoint_ns"),
    "namespace with a lone surrogate": (config("t", SURROGATE), ValueError, "checkpoint_ns"),
    "id too long": (config("t", "", LONG_ID), ValueError, "checkpoint_id"),
    "id too long when encoded": (config("t", "", "é" * 15), ValueError, "checkpoint_id"),
    "id with a lone surrogate": (config("t", "", SURROGATE), ValueError, "checkpoint_id"),
    "id of a wrong type": (whole_thread(checkpoint_id=7), ValueError, "id"),
}

# Every method that takes a config, and its async twin.
METHODS: dict[str, Callable[[MemorySaver, Any], Any]] = {
    "get": lambda saver, given: saver.get(given),
    "get_tuple": lambda saver, given: saver.get_tuple(given),
    "list": lambda saver, given: list(saver.list(given)),
    "put": lambda saver, given: saver.put(given, checkpoint(), {}, {}),  # type: ignore[arg-type]
    "put_writes": lambda saver, given: saver.put_writes(given, [("x", 1)], "task"),
    "get_delta_channel_history": lambda saver, given: saver.get_delta_channel_history(config=given, channels=["x"]),
}


async def alist(saver: MemorySaver, **arguments: Any) -> list[Any]:
    return [item async for item in saver.alist(**arguments)]


ASYNC_METHODS: dict[str, Callable[[MemorySaver, Any], Any]] = {
    "aget": lambda saver, given: saver.aget(given),
    "aget_tuple": lambda saver, given: saver.aget_tuple(given),
    "alist": lambda saver, given: alist(saver, config=given),
    "aput": lambda saver, given: saver.aput(given, checkpoint(), {}, {}),  # type: ignore[arg-type]
    "aput_writes": lambda saver, given: saver.aput_writes(given, [("x", 1)], "task"),
    "aget_delta_channel_history": lambda saver, given: saver.aget_delta_channel_history(config=given, channels=["x"]),
}


def refused(call: Callable[[MemorySaver], Any], error: type[Exception], names: str) -> None:
    """Assert that `call` raises `error`, naming `names`, and sends no request."""
    saver = MemorySaver()
    with pytest.raises(error, match=names) as raised:
        call(saver)
    assert type(raised.value) is error
    assert saver.driver.rounds == []
    # A message that quotes a lone surrogate must be printable.
    str(raised.value).encode()


# Configs


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("wrong", CONFIGS)
def test_config(method: str, wrong: str) -> None:
    """Every method refuses a config that names no possible checkpoint."""
    given, error, names = CONFIGS[wrong]
    refused(lambda saver: METHODS[method](saver, given), error, names)


@pytest.mark.parametrize("method", ASYNC_METHODS)
@pytest.mark.parametrize("wrong", CONFIGS)
async def test_config_async(method: str, wrong: str) -> None:
    """Every async method refuses it too."""
    given, error, names = CONFIGS[wrong]
    saver = MemorySaver()
    with pytest.raises(error, match=names):
        await ASYNC_METHODS[method](saver, given)
    assert saver.driver.rounds == []


def test_missing_thread_id_says_what_a_config_needs() -> None:
    """The error without a thread id shows what a config looks like."""
    refused(lambda saver: saver.get_tuple({}), KeyError, r"configurable.*thread_id")


@pytest.mark.parametrize("given", [None, 1.5, True, b"t", SURROGATE])
async def test_delete_thread(given: Any) -> None:
    """`delete_thread` refuses what cannot be a thread id."""
    refused(lambda saver: saver.delete_thread(given), ValueError, "thread_id")
    saver = MemorySaver()
    with pytest.raises(ValueError, match="thread_id"):
        await saver.adelete_thread(given)
    assert saver.driver.rounds == []


# Put


@pytest.mark.parametrize(
    ("changed", "error", "names"),
    [
        ({"id": LONG_ID}, ValueError, "checkpoint_id"),
        ({"id": SURROGATE}, ValueError, "checkpoint_id"),
        ({"id": ""}, ValueError, "checkpoint"),
        ({"id": None}, ValueError, "checkpoint"),
        ({"id": 7}, ValueError, "checkpoint"),
        ({"channel_values": {1: "v"}}, ValueError, "channel"),
        ({"channel_values": {SURROGATE: "v"}}, ValueError, "channel"),
        ({"channel_versions": {SURROGATE: "1"}}, ValueError, "channel"),
        ({"channel_versions": {"k": object()}}, TypeError, "structure"),
        ({"channel_versions": {"k": 2**70}}, TypeError, "structure"),
        ({"versions_seen": {"n": {"k": SURROGATE}}}, TypeError, "structure"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_checkpoint(changed: dict[str, Any], error: type[Exception], names: str) -> None:
    """`put` refuses a checkpoint whose id or structure cannot be stored."""
    given: Any = {**checkpoint(), **changed}
    refused(lambda saver: saver.put(config(), given, {}, {}), error, names)


def test_value_that_cannot_be_serialized() -> None:
    """A value that the serializer refuses is an error before any request, also as metadata and in writes."""
    bad = (number for number in ())
    saver = MemorySaver()
    calls: list[Callable[[], Any]] = [
        lambda: saver.put(config(), checkpoint({"k": bad}, {"k": "1"}), {}, {}),  # type: ignore[arg-type]
        lambda: saver.put(config(), checkpoint(), {"k": bad}, {}),  # type: ignore[arg-type, typeddict-unknown-key]
        lambda: saver.put(config(), checkpoint(later=bad), {}, {}),  # type: ignore[arg-type]
        lambda: saver.put_writes(config("t", "", "1"), [("ok", 1), ("k", bad)], "task"),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()
    assert saver.driver.rounds == []


def test_run_id_with_a_lone_surrogate() -> None:
    """A run id becomes a key, so it must have a UTF-8 form."""
    metadata: Any = {"run_id": SURROGATE}
    refused(lambda saver: saver.put(config(), checkpoint(), metadata, {}), ValueError, "run_id")  # type: ignore[arg-type]


# Writes


async def test_put_writes_without_an_id() -> None:
    """`put_writes` needs the id of the checkpoint that the writes belong to, and says so."""
    for given in (config(), whole_thread(checkpoint_id=None), whole_thread(checkpoint_id="")):
        refused(lambda saver, given=given: saver.put_writes(given, [("x", 1)], "task"), KeyError, "checkpoint_id")  # type: ignore[misc]
        saver = MemorySaver()
        with pytest.raises(KeyError, match="checkpoint_id"):
            await saver.aput_writes(given, [("x", 1)], "task")
        assert saver.driver.rounds == []


@pytest.mark.parametrize("wrong", [None, 1, b"t", SURROGATE])
def test_task_and_channel(wrong: Any) -> None:
    """Task ids, task paths and channels of writes are text."""
    where = config("t", "", "1")
    refused(lambda saver: saver.put_writes(where, [("x", 1)], wrong), ValueError, "task_id")
    refused(lambda saver: saver.put_writes(where, [("x", 1)], "task", wrong), ValueError, "task_path")
    refused(lambda saver: saver.put_writes(where, [(wrong, 1)], "task"), ValueError, "channel")


# List


@pytest.mark.parametrize("wrong", [["a"], "a", 1, {("a", 1)}])
async def test_filter(wrong: Any) -> None:
    """A filter is a dict."""
    refused(lambda saver: list(saver.list(None, filter=wrong)), TypeError, "filter")
    saver = MemorySaver()
    with pytest.raises(TypeError, match="filter"):
        await alist(saver, config=None, filter=wrong)
    assert saver.driver.rounds == []


def test_before() -> None:
    """A bound is a config, with an id that can be one."""
    refused(lambda saver: list(saver.list(None, before="1")), TypeError, "config")  # type: ignore[arg-type]
    refused(lambda saver: list(saver.list(config(), before=config("t", "", LONG_ID))), ValueError, "checkpoint_id")  # type: ignore[arg-type]
    refused(lambda saver: list(saver.list(config(), before=config("t", "", SURROGATE))), ValueError, "checkpoint_id")  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["1", 1.5, True])
def test_limit(wrong: Any) -> None:
    """A limit is a whole number or None."""
    refused(lambda saver: list(saver.list(None, limit=wrong)), TypeError, "limit")


# Settings. Constructing sends nothing; what matters is that it fails, and by which name.


class Fails:
    """A client that must not be asked anything."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the client was asked for {name}")


@pytest.mark.parametrize("cls", [S3Saver, AsyncS3Saver])
@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("bucket", "", ValueError),
        ("bucket", None, ValueError),
        ("bucket", 7, ValueError),
        ("bucket", "a/b", ValueError),
        ("bucket", "bucket/", ValueError),
        ("bucket", "s3://bucket", ValueError),
        ("bucket", "two words", ValueError),
        ("bucket", "user:secret", ValueError),
        ("prefix", "/a", ValueError),
        ("prefix", "/", ValueError),
        ("prefix", "a//b", ValueError),
        ("prefix", "..", ValueError),
        ("prefix", "a/../b", ValueError),
        ("prefix", "./a", ValueError),
        ("prefix", "a//", ValueError),
        ("prefix", "a\x00", ValueError),
        ("prefix", SURROGATE, ValueError),
        ("prefix", "p" * (PREFIX_BYTES_MAX + 1), ValueError),
        ("prefix", "é" * (PREFIX_BYTES_MAX // 2 + 1), ValueError),
        ("prefix", None, TypeError),
        ("prefix", b"a", TypeError),
        ("inline_limit", 0, ValueError),
        ("inline_limit", -1, ValueError),
        ("inline_limit", True, TypeError),
        ("inline_limit", 1.5, TypeError),
        ("inline_limit", "1", TypeError),
        ("inline_limit", None, TypeError),
        ("max_concurrency", 0, ValueError),
        ("max_concurrency", -1, ValueError),
        ("max_concurrency", True, TypeError),
        ("max_concurrency", None, TypeError),
        ("metadata_filter", "api_key", TypeError),
        ("metadata_filter", {"api_key"}, TypeError),
        ("put_extra_args", {"StorageKlass": "STANDARD_IA"}, ValueError),
        ("put_extra_args", {"Body": b"x"}, ValueError),
        ("put_extra_args", {"IfNoneMatch": "*"}, ValueError),
        ("put_extra_args", "StorageClass", TypeError),
        ("put_extra_args", [("StorageClass", "STANDARD_IA")], TypeError),
        ("put_extra_args", {"ObjectLockMode": "GOVERNANCE"}, ValueError),
        ("put_extra_args", {"ObjectLockRetainUntilDate": timedelta(days=1)}, ValueError),
        ("put_extra_args", {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": None}, ValueError),
        ("put_extra_args", {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": timedelta(0)}, ValueError),
        ("put_extra_args", {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": -timedelta(1)}, ValueError),
        ("put_extra_args", {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": 30}, TypeError),
        ("put_extra_args", {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": "30 days"}, TypeError),
    ],
)
def test_setting(cls: type, argument: str, value: Any, error: type[Exception]) -> None:
    """A wrong setting is refused when the saver is made, by its name."""
    given = {"bucket": "bucket", "client": Fails(), argument: value}
    with pytest.raises(error, match=argument) as raised:
        cls(**given)
    assert type(raised.value) is error
    str(raised.value).encode()


@pytest.mark.parametrize("argument", ["prefx", "region_name", "endpoint_url"])
@pytest.mark.parametrize("cls", [S3Saver, AsyncS3Saver])
def test_unknown_setting(cls: type, argument: str) -> None:
    """An argument that the class does not have is refused."""
    with pytest.raises(TypeError, match=argument):
        cls("bucket", **{argument: "x"})


def test_session_and_client_exclude_each_other() -> None:
    """Giving a session and a client is refused, naming both."""
    with pytest.raises(ValueError, match=r"session.*client"):
        AsyncS3Saver("bucket", session=Fails(), client=Fails())


def test_settings_that_are_right() -> None:
    """What is near to wrong but right is taken: a slash at a prefix's end, the longest prefix, limits of one."""
    later = datetime.now(UTC) + timedelta(days=1)
    for settings in (
        {"prefix": "a/b/"},
        {"prefix": "p" * PREFIX_BYTES_MAX},
        {"prefix": "ünïcode/with space"},
        {"inline_limit": 1, "max_concurrency": 1},
        {"metadata_filter": None},
        {"put_extra_args": {}},
        {"put_extra_args": {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": timedelta(days=1)}},
        {"put_extra_args": {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": later}},
    ):
        for cls in (S3Saver, AsyncS3Saver):
            cls("bucket", **settings).close()


@pytest.mark.parametrize("prefix", ["", "p" * PREFIX_BYTES_MAX])
def test_longest_key_fits(prefix: str) -> None:
    """The longest names that are taken give keys of at most 1,024 bytes, with segments of at most 255."""
    layout = Layout.under(prefix)
    for thread_id in ("t" * 200, "é" * 500):
        for namespace in ("n" * 240, "é" * 500):
            key = layout.folder(thread_id, namespace, "i" * ID_BYTES_MAX) + "writes-" + "0" * 23 + ".parquet"
            assert len(key.encode()) <= 1024
            assert max(len(part) for part in key.removeprefix(prefix).split("/")) <= 255 + len("checkpoint_ns=")


# Connection strings

SECRET = "wJalrXUtnFEMI"


@pytest.mark.parametrize("cls", [S3Saver, AsyncS3Saver])
@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("s3://bucket?regoin_name=x", "regoin_name"),
        ("s3://bucket/p?max_concurrency=4", "max_concurrency"),
        (f"s3://bucket?aws_secret_access_key={SECRET}", "aws_secret_access_key"),
        (f"s3://AKIA:{SECRET}@bucket/p", "credentials"),
        (f"s3://{SECRET}@bucket", "credentials"),
        (f"s3://AKIA:a/{SECRET}@bucket/p", "credentials"),
        (f"s3://AKIA:a#{SECRET}@bucket/p", "credentials"),
        (f"s3://AKIA:a?{SECRET}@bucket/p", "credentials"),
        (f"s3://AKIA:{SECRET}", "credentials"),
        (f"https://AKIA:{SECRET}@bucket", "s3://"),
        (f"S4://AKIA:{SECRET}@bucket", "s3://"),
        ("bucket/prefix", "s3://"),
        ("", "s3://"),
        ("s3://", "s3://"),
        ("s3:///prefix", "s3://"),
        ("s3://bucket/p#fragment", "fragment"),
        ("s3://bucket?region_name=", "region_name"),
        ("s3://bucket?region_name=a&region_name=b", "region_name"),
        ("s3://bucket//p", "prefix"),
        ("s3://bucket/../p", "prefix"),
        (None, "NoneType"),
        (b"s3://bucket", "bytes"),
    ],
)
async def test_connection_string(cls: Any, address: Any, names: str) -> None:
    """A connection string that is wrong is refused by what is wrong, without repeating what may be a secret."""
    with pytest.raises((ValueError, TypeError), match=names) as raised:
        if cls is S3Saver:
            with S3Saver.from_conn_string(address):
                pass
        else:
            async with AsyncS3Saver.from_conn_string(address):
                pass
    shown = f"{raised.value!r} {raised.value.__context__!r} {raised.value.__cause__!r}"
    assert SECRET not in shown


def test_settings_given_twice() -> None:
    """What the string says cannot be said again by a keyword."""
    with pytest.raises(TypeError, match="prefix"), S3Saver.from_conn_string("s3://bucket/p", prefix="q"):
        pass


def test_connection_string_is_read_whole() -> None:
    """Bucket, prefix and the three arguments are found where they stand."""
    assert from_conn_string(
        "s3://bucket/a/b/?region_name=eu-west-1&endpoint_url=http://127.0.0.1:9000&profile_name=p%20q"
    ) == (
        "bucket",
        "a/b/",
        {"region_name": "eu-west-1", "endpoint_url": "http://127.0.0.1:9000", "profile_name": "p q"},
    )
    assert from_conn_string("s3://bucket") == ("bucket", "", {})


def test_errors_print_no_secrets() -> None:
    """A saver's own representation shows bucket and prefix, and no arguments that may be secret."""
    saver = S3Saver("bucket", prefix="p", put_extra_args={"SSECustomerKey": SECRET, "SSECustomerAlgorithm": "AES256"})
    assert repr(saver) == "S3Saver('bucket', prefix='p')"
    saver.close()
