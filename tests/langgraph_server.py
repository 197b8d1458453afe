"""The real LangGraph server, `langgraph dev`, on the application in `server/`: started, watched and stopped.

Nothing of it needs a network: no tracing, no usage report, no look for a newer version, no key.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

from s3_saver import guardian

APPLICATION = Path(__file__).with_name("server")
START_SECONDS_MAX = 120.0
STEP_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
# The server sends signs of life while a client waits for a run, so a client's own time limit is no limit.
LIFE_SECONDS_MAX = 300.0
PAUSE_SECONDS = 0.1

OFFLINE = {
    "LANGSMITH_TRACING": "false",
    "LANGGRAPH_CLI_NO_ANALYTICS": "1",
    "LANGGRAPH_NO_VERSION_CHECK": "true",
}
_ADDRESS = re.compile(r"API: \S*?(http://127\.0\.0\.1:\d+)")


class LangGraphServer:
    """A server in a folder of its own, and an SDK client of it. Both end with the block, whatever happened in it.

    Its parent is a guardian, as the S3 server's is: it ends with this process too.
    """

    client: SyncLangGraphClient

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self._application = shutil.copytree(APPLICATION, folder / "application")
        self._log = folder / "server.log"
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("LANG", "LOG_", "BG_JOB_"))
        }
        self._environment = inherited | OFFLINE | {"LOG_JSON": "true", "PYTHONIOENCODING": "utf-8"} | dict(settings)

    def __enter__(self) -> Self:
        # The port is free as a rule; if not, the server takes another one, and says so.
        server = [sys.executable, "-m", "langgraph_cli", "dev", "--no-browser", "--no-reload"]
        command = [*server, "--host", "127.0.0.1", "--port", str(_free_port())]
        order = {"command": command, "sockets": [], "temporary": None, "lock": None, "grace_seconds": 20.0}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guardian.__file__, json.dumps(order)],
                cwd=self._application,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._watchdog = threading.Timer(LIFE_SECONDS_MAX, self._kill)
        self._watchdog.daemon = True
        self._watchdog.start()
        try:
            address = self._wait("its address", START_SECONDS_MAX, lambda: _ADDRESS.search(self.log()))
            self.client = get_sync_client(url=address[1], api_key=None)
            self._wait("an answer", START_SECONDS_MAX, self._answers)
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self._stop()

    def log(self) -> str:
        """All that the server has said so far."""
        return self._log.read_text("utf-8")

    def events(self) -> list[dict[str, Any]]:
        """What it said since it could write its log in JSON."""
        lines = self.log().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def complaints(self) -> list[str]:
        """Errors, and warnings about the checkpointer. That a busy machine was slow is none."""
        loud = [
            f"{event['level']}: {event['event']} {event.get('exception', '')}"
            for event in self.events()
            if event["level"] in ("error", "critical")
            or (event["level"] == "warning" and "checkpointer" in event["event"].lower())
            or "Custom checkpointer missing" in event["event"]
        ]
        plain = [line for line in self.log().splitlines() if not line.startswith("{")]
        return loud + [line for line in plain if "Traceback" in line or "Warning:" in line or "ignored" in line]

    def until(self, what: str, holds: Callable[[], Any]) -> Any:
        """What `holds` returns, as soon as that is true."""
        return self._wait(what, STEP_SECONDS_MAX, holds)

    def _wait(self, what: str, seconds_max: float, holds: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + seconds_max
        while not (found := holds()):
            code = self._process.poll()
            assert code is None, f"the server ended with {code}, before {what}:\n{self.log()}"
            assert time.monotonic() < deadline, f"no {what} after {seconds_max} s:\n{self.log()}"
            time.sleep(PAUSE_SECONDS)
        return found

    def _answers(self) -> bool:
        with suppress(Exception):  # nothing listens yet, or what listens is still loading
            return bool(self.client.http.get("/ok")["ok"])
        return False

    def _stop(self) -> None:
        """End the server as an operator does, and all that it started, whether it obeys or not."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(STOP_SECONDS_MAX)
        finally:
            self._watchdog.cancel()
            self._kill()
            self._process.wait(STOP_SECONDS_MAX)

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
