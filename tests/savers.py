"""Savers and clients for a test server, which is anything with an endpoint, keys, a region and a bucket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Protocol

import boto3
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.config import Config

from s3_saver import AsyncS3Saver, S3Saver

_SETTINGS: dict[str, Any] = {
    "s3": {"addressing_style": "path"},
    "retries": {"mode": "standard", "max_attempts": 3},
    "connect_timeout": 5,
    "read_timeout": 30,
    "max_pool_connections": 16,
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}


class Server(Protocol):
    """What a test needs to know of an S3 server."""

    endpoint_url: str
    access_key: str
    secret_key: str
    region: str
    bucket: str


def credentials(server: Server) -> dict[str, str]:
    """The arguments of a client, of boto3 and aiobotocore alike."""
    return {
        "endpoint_url": server.endpoint_url,
        "aws_access_key_id": server.access_key,
        "aws_secret_access_key": server.secret_key,
        "region_name": server.region,
    }


@cache
def _client(**arguments: str) -> Any:
    return boto3.client("s3", config=Config(**_SETTINGS), **arguments)


def boto3_client(server: Server) -> Any:
    """A boto3 client, one for all tests of a process: making one takes long, and it may be shared."""
    return _client(**credentials(server))


def sync_saver(server: Server, prefix: str, **settings: Any) -> S3Saver:
    return S3Saver(server.bucket, prefix=prefix, client=boto3_client(server), **settings)


@asynccontextmanager
async def async_saver(server: Server, prefix: str, **settings: Any) -> AsyncIterator[AsyncS3Saver]:
    """A saver over an aiobotocore client of its own, since such a client belongs to one event loop."""
    arguments = credentials(server)
    async with get_session().create_client("s3", config=AioConfig(**_SETTINGS), **arguments) as client:
        yield AsyncS3Saver(server.bucket, prefix=prefix, client=client, **settings)
