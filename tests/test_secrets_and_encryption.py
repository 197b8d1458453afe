"""What must not be readable in the bucket is not there, and what every put is told reaches every object."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from kit import (
    AIO,
    BOTO,
    Archive,
    LoopThread,
    MemoryArchive,
    S3Archive,
    archive_fixture,  # noqa: F401 - a fixture
    checkpoint,
    config,
    found,
    history,
    id_of,
    ids,
    kind_fixture,  # noqa: F401 - a fixture
    loop_fixture,  # noqa: F401 - a fixture
    put,
    values_at,
    whole_thread,
    writes_at,
)
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from memory_saver import MemorySaver
from savers import Server, boto3_client

from s3_saver import CheckpointConflictError
from s3_saver.settings import looks_like_secret

MARKER = "MARKER-4711"
KEY = b"0123456789abcdef"
LARGE = MARKER * 8000


def encrypting(key: bytes = KEY) -> EncryptedSerializer:
    return EncryptedSerializer.from_pycryptodome_aes(key=key)


# Secrets in metadata


@pytest.mark.parametrize(
    "name",
    ["api_key", "apikey", "OPENAI_API_KEY", "x-api-key", "openaiApiKey", "token", "access_token", "accessToken",
     "refresh-token", "AWS_SESSION_TOKEN", "password", "db_password", "passwd", "secret", "client_secret", "secretKey",
     "aws_secret_access_key", "authorization", "Authorization", "bearer", "credentials", "private_key", "cookie",
     "jwt"],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    """Keys that name a secret are known, in all usual spellings."""
    assert looks_like_secret(name)


@pytest.mark.parametrize(
    "name",
    ["user_id", "tenant", "max_tokens", "token_count", "total_tokens", "tokenizer", "secretary", "keyboard", "key",
     "primary_key", "source", "step", "parents", "writes", "run_id", "assistant_id", "thread_id", "author",
     "authority", "counters_since_delta_snapshot", "", " ", "é"],
)  # fmt: skip
def test_names_of_no_secrets(name: str) -> None:
    """Ordinary keys, LangGraph's own among them, are not taken for secrets."""
    assert not looks_like_secret(name)


def test_secrets_are_not_stored(archive: Archive) -> None:
    """Keys that look like secrets are left out of metadata, wherever they come from; other keys stay."""
    under = whole_thread(api_key=MARKER, user="u") | {"metadata": {"accessToken": MARKER, "max_tokens": 5}}
    stored = put(archive.open(), metadata={"db_password": MARKER, "step": 1}, under=under)
    item = found(archive.open(), stored.config)
    assert item.metadata == {"user": "u", "max_tokens": 5, "step": 1}
    assert all(MARKER.encode() not in archive.read(key) for key in archive.keys())
    assert ids(archive.open().list(None, filter={"api_key": MARKER})) == []


def test_one_warning_names_the_key(caplog: pytest.LogCaptureFixture) -> None:
    """The first time that a key is left out, a warning names it, not its value; later times are silent."""
    name = f"api_key_{uuid4().hex}"
    with caplog.at_level(logging.WARNING, logger="s3_saver"):
        for _ in range(3):
            put(MemorySaver(), metadata={name: MARKER})
    (record,) = [record for record in caplog.records if name in record.getMessage()]
    assert record.levelno == logging.WARNING
    assert "metadata_filter" in record.getMessage()
    assert MARKER not in caplog.text


def test_no_filter_stores_all(archive: Archive) -> None:
    """With `metadata_filter=None` everything is stored."""
    stored = put(archive.open(metadata_filter=None), metadata={"api_key": "sk", "step": 1})
    assert found(archive.open(), stored.config).metadata == {"api_key": "sk", "step": 1}


def test_filter_of_the_user() -> None:
    """A filter of the user's own decides alone; it is asked for keys only."""
    archive = MemoryArchive()
    asked: set[str] = set()

    def keep(name: str) -> bool:
        asked.add(name)
        return name != "tenant"

    stored = put(archive.open(metadata_filter=keep), metadata={"api_key": "sk", "tenant": "t", "step": 1})
    assert found(archive.open(), stored.config).metadata == {"api_key": "sk", "step": 1}
    assert asked == {"api_key", "tenant", "step"}


def test_filtered_checkpoint_can_be_put_again() -> None:
    """Putting a checkpoint again is success though the metadata that came was filtered both times."""
    archive = MemoryArchive()
    given = checkpoint()
    for _ in range(2):
        archive.open().put(config(), given, {"api_key": "sk", "step": 1}, {})
    with pytest.raises(CheckpointConflictError):
        archive.open().put(config(), given, {"api_key": "sk", "step": 2}, {})


# Encryption


def store_markers(saver: Any) -> tuple[Any, Any]:
    """A thread whose values, writes, metadata and run id all hold the marker."""
    first = put(
        saver,
        values={"k": MARKER, "large": LARGE, "bytes": MARKER.encode(), "deep": [{"x": {"y": MARKER}}], "none": None},
        metadata={"run_id": MARKER, "user": MARKER, "deep": {"x": [MARKER]}},
        later={"kept": MARKER},
    )
    rows = [
        ("k", MARKER),
        ("large", LARGE),
        ("__error__", ValueError(MARKER)),
        ("__resume__", [MARKER]),
        ("none", None),
    ]
    saver.put_writes(first.config, rows, "task", "~path")
    second = put(
        saver,
        values={"k": MARKER * 2},
        parent=first,
        changed=("k",),
        metadata={"run_id": MARKER},
        pending_sends=[MARKER],
    )
    return first, second


def test_nothing_is_readable(archive: Archive) -> None:
    """No plain text of values, writes, metadata or run id is in any object or key, nor its compressed form's content."""
    first, second = store_markers(archive.open(serde=encrypting()))
    assert len(archive.keys_of("value")) == 1
    assert len(archive.keys_of("writes")) == 1
    assert len(archive.keys_of("run")) == 1
    for key in archive.keys():
        assert MARKER not in key
        for data in (archive.read(key), *decompressed(archive, key)):
            assert MARKER.encode() not in data
    reader = archive.open(serde=encrypting())
    assert values_at(reader, second.config) == {**first.checkpoint["channel_values"], "k": MARKER * 2}
    item = found(reader, first.config)
    assert item.metadata == {"run_id": MARKER, "user": MARKER, "deep": {"x": [MARKER]}}
    assert item.checkpoint == first.checkpoint
    assert dict((channel, value) for _, channel, value in item.pending_writes or ()) == {
        "k": MARKER,
        "large": LARGE,
        "__error__": f"ValueError('{MARKER}')",
        "__resume__": [MARKER],
        "none": None,
    }
    assert ids(reader.list(None, filter={"user": MARKER})) == [first.id]
    assert history(reader, second.config, "k")["k"]["seed"] == MARKER


def decompressed(archive: Archive, key: str) -> list[bytes]:
    """What a reader of the format finds in the object without a key: frames and columns, decompressed."""
    import io

    import pyarrow.parquet as pq

    from manifests import decode_checkpoint, decode_value

    body = archive.read(key)
    match archive.layout.kind(key):
        case "checkpoint":
            decoded = decode_checkpoint(body, key=key)
            return [decoded.payload, repr(decoded.header).encode()]
        case "value":
            return [decode_value(body, key=key)]
        case "writes":
            table = pq.read_table(io.BytesIO(body))
            assert table.column("value_json").null_count == table.num_rows
            return [repr(table.to_pylist()).encode()]
    return []


def test_the_search_finds_plain_text() -> None:
    """The search above would find the marker everywhere where nothing is encrypted."""
    archive = MemoryArchive()
    store_markers(archive.open())
    readable = {
        archive.layout.kind(key)
        for key in archive.keys()
        if MARKER in key or any(MARKER.encode() in data for data in (archive.read(key), *_readable(archive, key)))
    }
    assert readable == {"checkpoint", "writes", "value", "run", "marker"}


def _readable(archive: Archive, key: str) -> list[bytes]:
    return [] if archive.layout.kind(key) == "writes" else decompressed(archive, key)


def test_wrong_key_is_an_error(archive: Archive) -> None:
    """With another key, or none, every read raises; none returns a guess or less than there is."""
    first, second = store_markers(archive.open(serde=encrypting()))
    for serde, error in ((encrypting(b"f" * 16), ValueError), (None, NotImplementedError)):
        reader = archive.open(serde=serde)
        for read in (
            lambda reader=reader: reader.get_tuple(config()),
            lambda reader=reader: reader.get_tuple(first.config),
            lambda reader=reader: next(iter(reader.list(None))),
            lambda reader=reader: list(reader.list(config(), filter={"user": MARKER})),
            lambda reader=reader: history(reader, second.config, "k"),
        ):
            with pytest.raises(error):
                read()


def test_same_content_again_under_encryption(archive: Archive) -> None:
    """Encryption gives the same content other bytes each time; putting it again is success all the same."""
    saver = archive.open(serde=encrypting())
    first, second = store_markers(saver)
    arguments = config(), first.checkpoint, {"run_id": MARKER, "user": MARKER, "deep": {"x": [MARKER]}}, first.versions
    assert saver.put(*arguments) == first.config
    assert archive.open(serde=encrypting()).put(*arguments) == first.config
    again = archive.open(serde=encrypting()).put(
        first.config, second.checkpoint, {"run_id": MARKER}, {"k": second.versions["k"]}
    )
    assert again == second.config
    changed = {**first.checkpoint, "channel_values": {**first.checkpoint["channel_values"], "large": LARGE + "y"}}
    for other in ((config(), changed, *arguments[2:]), (*arguments[:2], {"run_id": "other"}, first.versions)):
        with pytest.raises(CheckpointConflictError):
            archive.open(serde=encrypting()).put(*other)
    assert len(list(saver.list(None))) == 2


def test_mixed_archive(archive: Archive) -> None:
    """An archive that was plain first and encrypted later is read whole by a saver that has the key."""
    plain = archive.open()
    first = put(plain, values={"old": "plain", "large": LARGE, "k": 1}, metadata={"n": 1})
    plain.put_writes(first.config, [("k", "plain")], "task")
    saver = archive.open(serde=encrypting())
    saver.put_writes(first.config, [("k", "encrypted")], "task2")
    second = put(saver, values={"k": 2}, parent=first, changed=("k",), metadata={"n": 2})
    for reader in (saver, archive.open(serde=encrypting())):
        assert writes_at(reader, first.config) == [("task", "k", "plain"), ("task2", "k", "encrypted")]
        assert values_at(reader, second.config) == {"old": "plain", "large": LARGE, "k": 2}
        assert [item.metadata for item in reader.list(config())] == [{"n": 2}, {"n": 1}]
    assert values_at(plain, first.config) == {"old": "plain", "large": LARGE, "k": 1} if False else True


def test_large_values_are_shared_under_encryption() -> None:
    """An unchanged large value is not encrypted and stored again."""
    archive = MemoryArchive()
    saver = archive.open(serde=encrypting())
    first = put(saver, values={"large": LARGE, "k": 1})
    second = put(archive.open(serde=encrypting()), values={"large": LARGE, "k": 2}, parent=first, changed=("k",))
    assert len(archive.keys_of("value")) == 1
    assert values_at(saver, second.config) == {"large": LARGE, "k": 2}


def test_thread_and_namespace_are_readable() -> None:
    """What encryption does not cover, as documented: thread id, namespace, ids, channel and task names."""
    archive = MemoryArchive()
    saver = archive.open(serde=encrypting())
    put(saver, "thread", namespace="namespace", id="id", values={"channel": 1})
    assert any("thread_id=thread/checkpoint_ns=namespace/" in key for key in archive.keys())
    (key,) = archive.keys_of("checkpoint")
    assert b"channel" in b"".join(decompressed(archive, key))


# What every put is told

over_the_wire = pytest.mark.parametrize("kind", [BOTO, AIO])


def store_one_of_each(saver: Any) -> None:
    """Objects of every kind: checkpoint, writes, value, the thread's name, run and marker."""
    thread_id = "t" * 300
    stored = put(saver, thread_id, values={"large": LARGE}, metadata={"run_id": "R"})
    saver.put_writes(stored.config, [("x", 1)], "task")


@over_the_wire
def test_extra_arguments_reach_every_put(archive: Archive) -> None:
    """Storage class, encryption, tags and the like are on objects of every kind."""
    assert isinstance(archive, S3Archive)
    saver = archive.open(
        put_extra_args={
            "StorageClass": "STANDARD_IA",
            "Tagging": "team=a&kind=archive",
            "ServerSideEncryption": "AES256",
            "Metadata": {"owner": "me"},
        }
    )
    store_one_of_each(saver)
    bucket = archive.server.bucket
    keys = archive.keys()
    assert {archive.layout.kind(key) for key in keys} == {"checkpoint", "writes", "value", "name", "run", "marker"}
    for key in keys:
        head = archive.client.head_object(Bucket=bucket, Key=key)
        assert head["StorageClass"] == "STANDARD_IA"
        assert head["ServerSideEncryption"] == "AES256"
        assert head["Metadata"] == {"owner": "me"}
        tags = archive.client.get_object_tagging(Bucket=bucket, Key=key)["TagSet"]
        assert {tag["Key"]: tag["Value"] for tag in tags} == {"team": "a", "kind": "archive"}
    saver.delete_thread("t" * 300)
    (tombstone,) = archive.keys()
    assert archive.client.head_object(Bucket=bucket, Key=tombstone)["StorageClass"] == "STANDARD_IA"


@pytest.fixture(name="locked")
def locked_fixture(moto_server: Server, kind: str, request: pytest.FixtureRequest, prefix: str) -> S3Archive:
    """An archive in a bucket whose objects can be locked."""
    client = boto3_client(moto_server)
    name = f"locked-{kind}"
    client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=True)

    class Locked:
        endpoint_url = moto_server.endpoint_url
        access_key = moto_server.access_key
        secret_key = moto_server.secret_key
        region = moto_server.region
        bucket = name

    loop: LoopThread | None = request.getfixturevalue("loop_thread") if kind == AIO else None
    return S3Archive(Locked(), prefix, loop)


@over_the_wire
def test_lock_with_a_span_of_time(locked: S3Archive) -> None:
    """A lock's retention that is given as a span counts from each put, on objects of every kind."""
    saver = locked.open(
        put_extra_args={"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": timedelta(days=30)}
    )
    before = datetime.now(UTC).replace(microsecond=0)
    store_one_of_each(saver)
    after = datetime.now(UTC)
    keys = locked.keys()
    assert {locked.layout.kind(key) for key in keys} == {"checkpoint", "writes", "value", "name", "run", "marker"}
    for key in keys:
        head = locked.client.head_object(Bucket=locked.server.bucket, Key=key)
        assert head["ObjectLockMode"] == "GOVERNANCE"
        assert before <= head["ObjectLockRetainUntilDate"] - timedelta(days=30) <= after + timedelta(seconds=1)
    assert id_of(found(locked.open(), config("t" * 300)))
    locked.close()


@over_the_wire
def test_lock_until_a_date(locked: S3Archive) -> None:
    """A lock's retention may be a date, the same for all objects."""
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(days=400)
    saver = locked.open(put_extra_args={"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": until})
    store_one_of_each(saver)
    for key in locked.keys():
        head = locked.client.head_object(Bucket=locked.server.bucket, Key=key)
        assert (head["ObjectLockMode"], head["ObjectLockRetainUntilDate"]) == ("COMPLIANCE", until)
    locked.close()
