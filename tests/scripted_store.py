"""A store that answers as a test scripts it: what real ones do too seldom, such as a body that breaks off.

with ScriptedStore(lambda asked: Reply(404)) as store:
    client = boto3.client("s3", endpoint_url=store.url, ...)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self


@dataclass(frozen=True)
class Asked:
    """A request as it came. `number` counts those of the same method and path, from 0."""

    method: str
    path: str
    number: int
    body: bytes = field(repr=False)
    headers: Message = field(repr=False)


@dataclass(frozen=True)
class Reply:
    """What to answer, and how: after a delay, or with a body that breaks off in its middle."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0
    breaks_off: bool = False


def refusal(status: int, code: str, **how: Any) -> Reply:
    """An error as S3 words it."""
    body = f"<Error><Code>{code}</Code><Message>by the test</Message></Error>".encode()
    return Reply(status, body, {"Content-Type": "application/xml"}, **how)


class ScriptedStore:
    """It listens on 127.0.0.1 from `__enter__` to `__exit__`; `answer` runs in a thread of each connection."""

    def __init__(self, answer: Callable[[Asked], Reply]) -> None:
        self.requests: list[Asked] = []
        self.in_flight = 0
        self._answer = answer
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _asked(self, method: str, path: str, body: bytes, headers: Message) -> Asked:
        with self._lock:
            number = sum((asked.method, asked.path) == (method, path) for asked in self.requests)
            asked = Asked(method, path, number, body, headers)
            self.requests.append(asked)
            self.in_flight += 1
        return asked

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        store = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                asked = store._asked(self.command, self.path, body, self.headers)
                reply = store._answer(asked)
                time.sleep(reply.delay_seconds)
                # Before the answer: the client may look as soon as it has it.
                with store._lock:
                    store.in_flight -= 1
                self._reply(reply)

            do_GET = do_PUT = do_POST = do_HEAD = handle_any

            def _reply(self, reply: Reply) -> None:
                self.send_response(reply.status)
                self.send_header("Content-Length", str(len(reply.body)))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.close_connection = reply.breaks_off
                self.wfile.write(reply.body[: len(reply.body) // 2] if reply.breaks_off else reply.body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler
