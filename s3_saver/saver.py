"""`S3Saver`: for graphs that run in threads. Its async methods run in threads too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol

from s3_saver import settings as settings_
from s3_saver.base import SaverBase
from s3_saver.bucket import Operation
from s3_saver.clients import Connection, make_boto3_client
from s3_saver.commits import Rows, ThreadCommits
from s3_saver.drivers.boto import BotoDriver
from s3_saver.refs import Ref
from s3_saver.settings import DEFAULT, INLINE_LIMIT_BYTES, MAX_CONCURRENCY, MetadataFilter

A = TypeVar("A")


class S3Saver(SaverBase):
    """A LangGraph checkpointer that archives every checkpoint as one immutable S3 object.

    All methods can be called from any thread, several at once.

    Args:
        bucket: The bucket's name, without `s3://` or a slash. It must exist, see `setup`.
        prefix: What all keys start with, without a slash at its ends. Default: nothing.
        client: A boto3 S3 client, which the saver does not close. Default: one made at the first request, from the
            usual chain of credentials and settings, with bounded time-outs and standard retries.
        serde: Serializes values, writes and metadata. Default: LangGraph's `JsonPlusSerializer`.
        put_extra_args: Sent with every put, as boto3's `ExtraArgs`: `StorageClass`, `ServerSideEncryption`, `Tagging`,
            `ObjectLockMode`, … `ObjectLockRetainUntilDate` may be a `timedelta`, counted from each put.
        metadata_filter: Says of a metadata key whether it is stored. Default: keys that look like secrets are not.
            None stores all.
        inline_limit: Values of more bytes than this become objects of their own, shared between checkpoints while
            they do not change. Default: 65,536.
        max_concurrency: How many requests go out at once. Default: 16.

    Raises:
        ValueError, TypeError: An argument is wrong; the message says which and what is allowed.
    """

    def __init__(
        self,
        bucket: str,
        *,
        prefix: str = "",
        client: Any = None,
        serde: SerializerProtocol | None = None,
        put_extra_args: Mapping[str, Any] | None = None,
        metadata_filter: MetadataFilter | None = DEFAULT,
        inline_limit: int = INLINE_LIMIT_BYTES,
        max_concurrency: int = MAX_CONCURRENCY,
        _connection: Connection = Connection(),  # noqa: B008 - immutable
    ) -> None:
        settings = settings_.checked(
            bucket,
            prefix=prefix,
            put_extra_args=put_extra_args,
            metadata_filter=metadata_filter,
            inline_limit=inline_limit,
            max_concurrency=max_concurrency,
        )
        super().__init__(settings, serde)
        self._driver = BotoDriver(
            (lambda: make_boto3_client(_connection, max_concurrency)) if client is None else (lambda: client),
            owned=client is None,
            bucket=bucket,
            put_extra_args=settings.put_extra_args,
            max_concurrency=max_concurrency,
        )
        driver, shared = self._driver, self._shared
        self._commits = ThreadCommits(lambda ref, rows: driver.run(shared.store_batch(ref, rows)))

    @classmethod
    @contextmanager
    def from_conn_string(cls, conn_string: str, **keywords: Any) -> Iterator[Self]:
        """A saver for `s3://bucket/prefix?region_name=…&endpoint_url=…&profile_name=…`, closed at the block's end.

        `keywords` are those of the class. A string holds no credentials: they come from the usual chain.
        """
        bucket, prefix, connection = settings_.from_conn_string(conn_string)
        with cls(bucket, prefix=prefix, _connection=Connection(**connection), **keywords) as saver:
            yield saver

    def _run(self, operation: Operation[A]) -> A:
        return self._driver.run(operation)

    async def _arun(self, operation: Operation[A]) -> A:
        return await self._driver.arun(operation)

    def _submit(self, ref: Ref, rows: Rows) -> None:
        self._commits.submit(ref, rows)

    async def _asubmit(self, ref: Ref, rows: Rows) -> None:
        await self._driver.in_thread(lambda: self._commits.submit(ref, rows))

    def close(self) -> None:
        if not self._clone:
            self._driver.close()

    async def aclose(self) -> None:
        if not self._clone:
            await self._driver.aclose()
