"""The S3 clients that the package makes itself. Injected ones are taken as they are."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from botocore.config import Config


@dataclass(frozen=True, slots=True)
class Connection:
    """What a client is made of, beside the usual chain of credentials and settings."""

    region_name: str | None = None
    endpoint_url: str | None = None
    profile_name: str | None = None


def _config(max_concurrency: int, *, custom: bool) -> dict[str, Any]:
    """Bounded time-outs, standard retries, a pool as large as the concurrency.

    Stores other than AWS's may know neither host names made of bucket names nor the newer checksums.
    """
    return {
        "connect_timeout": 5,
        "read_timeout": 30,
        "retries": {"mode": "standard", "total_max_attempts": 4},
        "max_pool_connections": max_concurrency,
        "tcp_keepalive": True,
        **(
            {
                "s3": {"addressing_style": "path"},
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
            }
            if custom
            else {}
        ),
    }


def is_custom(endpoint_url: str) -> bool:
    """Whether the endpoint, given or found in the environment, is another store's than AWS's."""
    host = urlsplit(endpoint_url).hostname or ""
    return not host.endswith((".amazonaws.com", ".amazonaws.com.cn"))


def _kinds(connection: Connection) -> tuple[bool, ...]:
    """Whether the store is another's than AWS's, or both where that is not known yet.

    Only a client knows the endpoint that it found in the environment; another store's needs another configuration.
    """
    return (is_custom(connection.endpoint_url),) if connection.endpoint_url else (False, True)


def make_boto3_client(connection: Connection, max_concurrency: int) -> Any:
    """A boto3 client from the usual chain of credentials."""
    import boto3

    session = boto3.Session(profile_name=connection.profile_name, region_name=connection.region_name)
    named = {"endpoint_url": connection.endpoint_url} if connection.endpoint_url else {}
    region = session.region_name or "us-east-1"
    for custom in _kinds(connection):
        config = Config(**_config(max_concurrency, custom=custom))
        client = session.client("s3", region_name=region, config=config, **named)
        if is_custom(client.meta.endpoint_url) == custom:
            return client
        client.close()
    raise AssertionError("unreachable")


def _prepared(session: Any | None, connection: Connection) -> Any:
    """The session, which has read S3's description: that takes a tenth of a second, too long for an event loop."""
    session = session or _default_async_session(connection)
    loader = getattr(getattr(session, "_session", session), "get_component", lambda _: None)("data_loader")
    if loader is not None:
        for name in ("service-2", "endpoint-rule-set-1"):
            loader.load_service_model("s3", name)
        for name in ("endpoints", "partitions"):
            loader.load_data(name)
    return session


def _default_async_session(connection: Connection) -> Any:
    """A session of aioboto3 where it is installed, else of aiobotocore, which it stands on."""
    try:
        import aioboto3
    except ImportError:
        from aiobotocore.session import AioSession

        return AioSession(profile=connection.profile_name)
    return aioboto3.Session(profile_name=connection.profile_name, region_name=connection.region_name)


class AsyncClient:
    """An open client of the running loop, from either kind of session or none, inside `async with`.

    No asynchronous generator: a loop that ends closes all of these at once, and one that waits for another fails.
    """

    def __init__(self, session: Any | None, connection: Connection, max_concurrency: int) -> None:
        self._session = session
        self._connection = connection
        self._max_concurrency = max_concurrency
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Any:
        from aiobotocore.config import AioConfig

        connection = self._connection
        session = await asyncio.to_thread(_prepared, self._session, connection)
        create = session.create_client if hasattr(session, "create_client") else session.client
        named = {"endpoint_url": connection.endpoint_url} if connection.endpoint_url else {}
        region = connection.region_name or _region_of(session) or "us-east-1"
        for custom in _kinds(connection):
            config = AioConfig(**_config(self._max_concurrency, custom=custom))
            client = await self._open.enter_async_context(create("s3", region_name=region, config=config, **named))
            if is_custom(client.meta.endpoint_url) == custom:
                return client
            await self._open.aclose()
        raise AssertionError("unreachable")

    async def __aexit__(self, *raised: object) -> None:
        await self._open.aclose()


def _region_of(session: Any) -> str | None:
    if hasattr(session, "get_config_variable"):
        found: str | None = session.get_config_variable("region")
        return found
    named: str | None = session.region_name
    return named
