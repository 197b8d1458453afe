"""A process that stands between us and the S3 server, so that the server never outlives us.

Run as a script by `seaweed.py`, with one argument: an order in JSON,

    {"command": [...], "sockets": [paths], "temporary": path or null, "lock": descriptor or null, "grace_seconds": 1.0}

It starts the command, prints its process id, and waits. When its standard input ends, because the owner closed it
or died in whatever way, it stops the command, deletes the temporary folder and exits. When the command ends by
itself it exits too, but keeps the folder: the owner may start a new server on the same data.

Why a process and not a signal on the parent's death: Linux sends that signal when the *thread* that started the
child ends, and other systems have none. Linux's signal is used one level down, where that thread is our main one,
so that killing the guardian kills the server as well. Only the standard library is imported: it runs with `-I -S`.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PARENT_POLL_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1


class Guardian:
    """One child, and the two ways in which its owner can be found gone."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._temporary = order["temporary"]
        self._sockets = order["sockets"]
        self._grace_seconds = order["grace_seconds"]
        self._told_to_stop = threading.Event()
        self._child = subprocess.Popen(  # noqa: S603 - the owner's own command, no shell
            order["command"],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
            stderr=sys.stderr,
            # The child holds the lock of the data folder too: it is free when nobody uses the folder any more.
            pass_fds=() if order["lock"] is None else (order["lock"],),
            preexec_fn=_die_with_parent(os.getpid()) if sys.platform == "linux" else None,
        )

    def run(self) -> int:
        """Wait until the child has ended, by itself or since its owner is gone; the child's exit code."""
        signal.signal(signal.SIGTERM, self._on_sigterm)
        print(self._child.pid, flush=True)
        for wait in (_until_input_ends, _until_orphaned(os.getppid())):
            threading.Thread(target=self._stop_after, args=(wait,), daemon=True).start()
        code = self._child.wait()
        for path in self._sockets:
            Path(path).unlink(missing_ok=True)
        if self._told_to_stop.is_set() and self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
        return code

    def _on_sigterm(self, *_: object) -> None:
        threading.Thread(target=self._stop_after, args=(lambda: None,), daemon=True).start()

    def _stop_after(self, wait: Callable[[], None]) -> None:
        wait()
        self._told_to_stop.set()
        self._child.terminate()
        time.sleep(self._grace_seconds)
        self._child.kill()


def _until_input_ends() -> None:
    # Not sys.stdin: a thread that waits inside its buffer makes the interpreter abort when it shuts down.
    while os.read(0, 4096):
        pass


def _until_orphaned(parent: int) -> Callable[[], None]:
    """A fork of the owner may hold the other end of our input open; then only the parent's id tells."""

    def wait() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_SECONDS)

    return wait


def _die_with_parent(parent: int) -> Callable[[], None]:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before we asked
            os._exit(1)

    return prepare


if __name__ == "__main__":
    sys.exit(Guardian(json.loads(sys.argv[1])).run())
