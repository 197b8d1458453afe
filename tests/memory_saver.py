"""A saver over a bucket in memory: the savers' own code, with rounds that can be counted."""

from __future__ import annotations

from typing import Any, TypeVar

from langgraph.checkpoint.serde.base import SerializerProtocol

from s3_saver.base import SaverBase
from s3_saver.bucket import Operation
from s3_saver.commits import Rows
from s3_saver.drivers.memory import MemoryBucket, MemoryDriver
from s3_saver.refs import Ref
from s3_saver.settings import DEFAULT, INLINE_LIMIT_BYTES, MAX_CONCURRENCY, checked

A = TypeVar("A")


class MemorySaver(SaverBase):
    """`bucket` may be shared by several savers, as a store is by processes. `driver.rounds` keeps what was asked."""

    def __init__(
        self,
        bucket: MemoryBucket | None = None,
        *,
        name: str = "bucket",
        serde: SerializerProtocol | None = None,
        **settings: Any,
    ) -> None:
        defaults: dict[str, Any] = {
            "prefix": "",
            "put_extra_args": None,
            "metadata_filter": DEFAULT,
            "inline_limit": INLINE_LIMIT_BYTES,
            "max_concurrency": MAX_CONCURRENCY,
        }
        super().__init__(checked(name, **(defaults | settings)), serde)
        self.driver = MemoryDriver(bucket)

    def _run(self, operation: Operation[A]) -> A:
        return self.driver.run(operation)

    async def _arun(self, operation: Operation[A]) -> A:
        return await self.driver.arun(operation)

    def _submit(self, ref: Ref, rows: Rows) -> None:
        self.driver.run(self._shared.store_batch(ref, rows))

    async def _asubmit(self, ref: Ref, rows: Rows) -> None:
        self._submit(ref, rows)

    def close(self) -> None:
        pass

    async def aclose(self) -> None:
        pass
