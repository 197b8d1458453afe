"""The proxy changes nothing but the time, unless it was told to."""

import http.client
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from aiobotocore.session import get_session
from botocore.config import Config
from botocore.exceptions import ClientError, HTTPClientError
from savers import Server, credentials
from slow_proxy import SlowProxy


@pytest.fixture
def proxy(store: Server) -> Iterator[SlowProxy]:
    with SlowProxy(store.endpoint_url, latency_ms=0) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: SlowProxy, store: Server) -> Iterator[Any]:
    """A client of the store through the proxy that never tries twice."""
    config = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}, read_timeout=10)
    client = boto3.client("s3", config=config, **credentials(store) | {"endpoint_url": proxy.url})
    yield client
    client.close()


@pytest.mark.parametrize("size", [1, 1_000, 3_000_000])
def test_objects_pass_unchanged(client: Any, store: Server, prefix: str, size: int) -> None:
    """Signed puts with `Expect: 100-continue` and checksums arrive as they are, and gets bring them back."""
    body = bytes(value % 251 for value in range(size))
    client.put_object(Bucket=store.bucket, Key=f"{prefix}/ü =&", Body=body)
    answer = client.get_object(Bucket=store.bucket, Key=f"{prefix}/ü =&")
    assert answer["Body"].read() == body
    assert client.head_object(Bucket=store.bucket, Key=f"{prefix}/ü =&")["ContentLength"] == size


async def test_aiobotocore_passes(proxy: SlowProxy, store: Server, prefix: str) -> None:
    """The asynchronous client works through the proxy too."""
    arguments = credentials(store) | {"endpoint_url": proxy.url}
    async with get_session().create_client("s3", **arguments) as client:
        await client.put_object(Bucket=store.bucket, Key=prefix, Body=b"body")
        answer = await client.get_object(Bucket=store.bucket, Key=prefix)
        assert await answer["Body"].read() == b"body"


def test_operations_are_named(client: Any, proxy: SlowProxy, store: Server, prefix: str) -> None:
    """Each request is recorded under its S3 operation, in the order in which it came."""
    bucket = store.bucket
    client.put_object(Bucket=bucket, Key=f"{prefix}/a", Body=b"a")
    client.copy_object(Bucket=bucket, Key=f"{prefix}/b", CopySource={"Bucket": bucket, "Key": f"{prefix}/a"})
    client.get_object(Bucket=bucket, Key=f"{prefix}/b")["Body"].read()
    client.list_objects_v2(Bucket=bucket, Prefix=prefix)
    client.head_bucket(Bucket=bucket)
    client.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": f"{prefix}/a"}]})
    client.delete_object(Bucket=bucket, Key=f"{prefix}/b")
    assert [request.op for request in proxy.requests] == [
        "PutObject",
        "CopyObject",
        "GetObject",
        "ListObjectsV2",
        "HeadBucket",
        "DeleteObjects",
        "DeleteObject",
    ]
    assert proxy.requests[0].method == "PUT"
    assert proxy.requests[0].path == f"/{bucket}/{prefix}/a"


def test_latency(client: Any, proxy: SlowProxy, store: Server, prefix: str) -> None:
    """The delay holds from the moment it is set, once a request, and requests at the same time wait together."""
    client.put_object(Bucket=store.bucket, Key=prefix, Body=b"body")
    proxy.latency_ms = 200
    started = time.monotonic()
    client.head_object(Bucket=store.bucket, Key=prefix)
    assert time.monotonic() - started >= 0.2
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: client.head_object(Bucket=store.bucket, Key=prefix), range(8)))
    assert proxy.in_flight_max > 1
    assert proxy.in_flight == 0


def test_failures_strike_as_told(client: Any, proxy: SlowProxy, store: Server, prefix: str) -> None:
    """`fail` lets `skip` requests of the operation through, refuses `count`, and the store sees none of those."""
    proxy.fail(op="PutObject", status=503, skip=1, count=2)
    found = []
    for number in range(4):
        try:
            client.put_object(Bucket=store.bucket, Key=f"{prefix}/{number}", Body=b"body" * 1000)
            found.append(200)
        except ClientError as error:
            found.append(error.response["ResponseMetadata"]["HTTPStatusCode"])
    assert found == [200, 503, 503, 200]
    listed = client.list_objects_v2(Bucket=store.bucket, Prefix=prefix)["Contents"]
    assert [item["Key"] for item in listed] == [f"{prefix}/0", f"{prefix}/3"]


def test_lost_answer(client: Any, proxy: SlowProxy, store: Server, prefix: str) -> None:
    """`lose_answer` cuts the client off, and what it asked for was done."""
    proxy.lose_answer(op="PutObject")
    with pytest.raises(HTTPClientError):
        client.put_object(Bucket=store.bucket, Key=prefix, Body=b"body")
    assert client.get_object(Bucket=store.bucket, Key=prefix)["Body"].read() == b"body"
    proxy.lose_answer(op="DeleteObject")
    with pytest.raises(HTTPClientError):
        client.delete_object(Bucket=store.bucket, Key=prefix)
    with pytest.raises(ClientError, match="404"):
        client.head_object(Bucket=store.bucket, Key=prefix)


def test_conditional_put_passes(client: Any, store: Server, prefix: str) -> None:
    """A refusal that comes before the body was sent reaches the client, and the next request works."""
    for expected in (200, 412):
        try:
            answer = client.put_object(Bucket=store.bucket, Key=prefix, Body=b"body" * 100_000, IfNoneMatch="*")
        except ClientError as error:
            answer = error.response
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == expected
    assert client.list_objects_v2(Bucket=store.bucket, Prefix=prefix)["KeyCount"] == 1


def test_connections_are_kept(seaweed: Server) -> None:
    """One connection carries many requests where the server lets it (moto's ends each)."""
    with SlowProxy(seaweed.endpoint_url, latency_ms=0) as proxy:
        address = urlsplit(proxy.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port)
        connection.connect()
        first = connection.sock
        for method in ("GET", "HEAD", "GET"):
            connection.request(method, "/no-such-bucket/key")
            answer = connection.getresponse()
            answer.read()
            assert answer.status in (403, 404)
        assert connection.sock is first
        connection.close()


def test_chunked_bodies_pass(proxy: SlowProxy) -> None:
    """A request body in chunks is relayed to its end, so that the connection stays usable."""
    address = urlsplit(proxy.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    for _ in range(2):
        connection.request("PUT", "/no-such-bucket/key", iter([b"a" * 10, b"b" * 100_000]), encode_chunked=True)
        answer = connection.getresponse()
        answer.read()
        assert answer.status >= 400
    connection.close()


def test_client_that_goes_away(client: Any, proxy: SlowProxy, store: Server, prefix: str) -> None:
    """A client that leaves in the middle of a request leaves nothing in flight, and others go on."""
    address = urlsplit(proxy.url)
    for part in (b"PUT /", b"PUT /bucket/key HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nonly this"):
        with socket.create_connection((address.hostname or "", address.port or 0)) as connection:
            connection.sendall(part)
    client.put_object(Bucket=store.bucket, Key=prefix, Body=b"body")
    for tries in count():
        if not proxy.in_flight:
            break
        assert tries < 100, "a request without a client is still in flight"
        time.sleep(0.05)
