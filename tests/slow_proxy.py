"""A reverse proxy on 127.0.0.1 that makes an S3 server slow, or fail where a test wants it to.

    with SlowProxy(server.endpoint_url, latency_ms=20) as proxy:
        client = boto3.client("s3", endpoint_url=proxy.url, ...)
        proxy.fail(op="PutObject", status=503, skip=2)
        proxy.lose_answer(op="PutObject")

Messages pass unchanged, the Host header too: the server verifies signatures over the name that the client used.
The delay is added once to each request, before it is forwarded. One thread runs it all in an event loop; the
attributes may be read and set from any thread.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

HEAD_BYTES_MAX = 1 << 20
CHUNK_BYTES = 1 << 16
BODY_SECONDS_MAX = 0.1
NO_BODY = frozenset({204, 304})


class Request(NamedTuple):
    """One request as the proxy saw it; `op` is the S3 operation's name."""

    method: str
    path: str
    op: str


@dataclass
class Fault:
    """What happens to some requests of an operation: an answer of our own, or the server's answer kept back."""

    op: str
    status: int | None
    skip: int
    count: int

    def strikes(self, op: str) -> bool:
        """Whether it strikes this request; counts it."""
        if self.op not in (op, "*") or not self.count:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.count -= 1
        return True


@dataclass(frozen=True)
class Head:
    """The first line and the headers of a message, and their bytes."""

    raw: bytes
    start: tuple[str, str, str]
    headers: dict[str, str]

    @property
    def is_chunked(self) -> bool:
        return "chunked" in self.headers.get("transfer-encoding", "").lower()

    @property
    def is_last(self) -> bool:
        """Whether the sender closes the connection after this message."""
        return "close" in self.headers.get("connection", "").lower() or "HTTP/1.0" in self.start


class SlowProxy:
    """The proxy. It listens from `__enter__` to `__exit__`."""

    def __init__(self, upstream_url: str, latency_ms: float = 20) -> None:
        self.latency_ms = latency_ms
        self.requests: list[Request] = []
        self.in_flight = 0
        self.in_flight_max = 0
        self.url = ""
        parts = urlsplit(upstream_url)
        self._upstream = (parts.hostname or "", parts.port or 80)
        self._faults: list[Fault] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="slow-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    def fail(self, op: str = "*", status: int = 503, skip: int = 0, count: int = 1) -> None:
        """Answer `count` requests of `op` with `status`, after `skip` good ones; the server never sees them."""
        self._faults.append(Fault(op, status, skip, count))

    def lose_answer(self, op: str = "*", skip: int = 0, count: int = 1) -> None:
        """Let the server do `count` requests of `op`, after `skip` good ones, but keep its answer from the client."""
        self._faults.append(Fault(op, None, skip, count))

    def operations(self) -> Counter[str]:
        """How many requests of each operation came."""
        return Counter(request.op for request in self.requests)

    def reset(self) -> None:
        """Forget all requests and faults."""
        self.requests.clear()
        self._faults.clear()
        self.in_flight_max = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=HEAD_BYTES_MAX, backlog=512)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _close(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        connection = _Connection(self, reader, writer)
        # Cancelled only by _close; a task of a server must not end as cancelled, or asyncio reports it.
        with suppress(OSError, EOFError, asyncio.CancelledError):
            await connection.serve()
        connection.close()
        self._connections.discard(task)

    def _fault_for(self, op: str) -> Fault | None:
        return next((fault for fault in self._faults if fault.strikes(op)), None)


class _Connection:
    """One client's connection, and our own to the server that it needs."""

    def __init__(self, proxy: SlowProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._client = (reader, writer)
        self._server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def serve(self) -> None:
        """Relay requests until either side is done."""
        proxy = self._proxy
        while (head := await _read_head(self._client[0])) is not None:
            op = operation(head)
            proxy.requests.append(Request(head.start[0], head.start[1], op))
            proxy.in_flight += 1
            proxy.in_flight_max = max(proxy.in_flight_max, proxy.in_flight)
            try:
                await asyncio.sleep(proxy.latency_ms / 1000)
                goes_on = await self._one(head, proxy._fault_for(op))
            finally:
                proxy.in_flight -= 1
            if not goes_on:
                return

    def close(self) -> None:
        for _, writer in filter(None, (self._client, self._server)):
            writer.close()

    async def _one(self, head: Head, fault: Fault | None) -> bool:
        """Relay one request and its answer; whether the connection can be used again."""
        if fault is not None and fault.status is not None:
            await self._refuse(head, fault.status)
            return False
        reader, writer = await self._connect()
        writer.write(head.raw)
        # At once: who expects a 100 keeps the body back until that answer comes.
        body = asyncio.create_task(_relay_body(self._client[0], writer, head))
        answer = asyncio.create_task(self._relay_answer(reader, head, lost=fault is not None))
        try:
            await asyncio.wait([body, answer], return_when=asyncio.FIRST_COMPLETED)
            if body.done():
                body.result()  # raises where the client went away in the middle
            reply = await answer
            # A body that is still under way was refused; its rest would be taken for the next request.
            await asyncio.wait([body], timeout=0 if "expect" in head.headers else BODY_SECONDS_MAX)
            is_whole = body.done() and body.exception() is None
        finally:
            body.cancel()
            answer.cancel()
            await asyncio.wait([body, answer])
        return is_whole and fault is None and not reply.is_last and not head.is_last

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._server is None or self._server[0].at_eof():
            if self._server is not None:
                self._server[1].close()
            self._server = await asyncio.open_connection(*self._proxy._upstream, limit=HEAD_BYTES_MAX)
        return self._server

    async def _relay_answer(self, reader: asyncio.StreamReader, request: Head, *, lost: bool) -> Head:
        client = self._client[1]
        while True:
            head = await _read_head(reader)
            if head is None:
                raise EOFError("the server closed the connection instead of answering")
            status = int(head.start[1])
            # The 100 goes through even where the answer gets lost: without it there would be no body.
            if not lost or status < 200:
                client.write(head.raw)
                await client.drain()
            if status >= 200:
                break
        if request.start[0] != "HEAD" and status not in NO_BODY:
            async for chunk in _read_body(reader, head, until_eof=True):
                if not lost:
                    client.write(chunk)
                    await client.drain()
        return head

    async def _refuse(self, head: Head, status: int) -> None:
        reader, client = self._client
        if "expect" not in head.headers:
            async for _ in _read_body(reader, head):  # unread, it would make the close a reset
                pass
        body = f"<Error><Code>{_code(status)}</Code><Message>by the test</Message></Error>".encode()
        client.write(
            f"HTTP/1.1 {status} Refused\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        if head.start[0] != "HEAD":
            client.write(body)
        await client.drain()


def _code(status: int) -> str:
    return {
        403: "AccessDenied",
        409: "ConditionalRequestConflict",
        412: "PreconditionFailed",
        500: "InternalError",
    }.get(status, "SlowDown")


async def _read_head(reader: asyncio.StreamReader) -> Head | None:
    """The next message's head, or None where the sender has no more."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
    method_or_version, target_or_status, *rest = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    return Head(raw, (method_or_version, target_or_status, "".join(rest)), headers)


async def _relay_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: Head) -> None:
    async for chunk in _read_body(reader, head):
        writer.write(chunk)
        await writer.drain()


async def _read_body(reader: asyncio.StreamReader, head: Head, *, until_eof: bool = False) -> AsyncIterator[bytes]:
    """The body that follows the head, as it stands on the wire."""
    if head.is_chunked:
        async for chunk in _read_chunks(reader):
            yield chunk
        return
    if until_eof and "content-length" not in head.headers:
        while chunk := await reader.read(CHUNK_BYTES):
            yield chunk
        return
    left = int(head.headers.get("content-length", 0))
    while left:
        chunk = await reader.read(min(left, CHUNK_BYTES))
        if not chunk:
            raise EOFError("the body is cut short")
        left -= len(chunk)
        yield chunk


async def _read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while True:
        line = await reader.readuntil(b"\r\n")
        yield line
        size = int(line.partition(b";")[0], 16)
        if not size:
            break
        yield await reader.readexactly(size + 2)
    while line != b"\r\n":  # trailers, and the empty line that ends them
        line = await reader.readuntil(b"\r\n")
        yield line


def operation(head: Head) -> str:
    """The name of the S3 operation that a request with a path-style address asks for."""
    method, target, _ = head.start
    path, _, query = target.partition("?")
    asked = parse_qs(query, keep_blank_values=True)
    has_key = bool(path.lstrip("/").partition("/")[2])
    match method:
        case "GET" if has_key:
            return "GetObject"
        case "GET":
            return next(
                (name for sign, name in _BUCKET_READS.items() if sign in asked),
                "ListBuckets" if path == "/" else "ListObjects",
            )
        case "HEAD":
            return "HeadObject" if has_key else "HeadBucket"
        case "PUT" if "partNumber" in asked:
            return "UploadPart"
        case "PUT" if has_key:
            return "CopyObject" if "x-amz-copy-source" in head.headers else "PutObject"
        case "PUT":
            return "CreateBucket"
        case "POST":
            return next((name for sign, name in _POSTS.items() if sign in asked), "Post")
        case "DELETE":
            return "AbortMultipartUpload" if "uploadId" in asked else "DeleteObject" if has_key else "DeleteBucket"
    return method


_BUCKET_READS = {
    "list-type": "ListObjectsV2",
    "versions": "ListObjectVersions",
    "versioning": "GetBucketVersioning",
    "location": "GetBucketLocation",
    "object-lock": "GetObjectLockConfiguration",
}
_POSTS = {"delete": "DeleteObjects", "uploads": "CreateMultipartUpload", "uploadId": "CompleteMultipartUpload"}
