"""LangGraph's own conformance suite, on both savers, on moto and on SeaweedFS: all of it, nothing skipped."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.report import ProgressCallbacks
from savers import async_saver, sync_saver

CAPABILITIES = {
    "put",
    "put_writes",
    "get_tuple",
    "list",
    "delete_thread",
    "delete_for_runs",
    "copy_thread",
    "prune",
}
TESTS = 81


@pytest.mark.parametrize("kind", ["S3Saver", "AsyncS3Saver"])
async def test_conformance(store: Any, prefix: str, kind: str) -> None:
    """Every test of every capability passes."""

    @checkpointer_test(name=kind)
    async def saver() -> AsyncIterator[Any]:
        below = f"{prefix}/{uuid4().hex}"
        if kind == "S3Saver":
            made = sync_saver(store, below)
            yield made
            await made.aclose()
        else:
            async with async_saver(store, below) as made:
                yield made

    results: list[tuple[str, str, bool, str | None]] = []

    def note(capability: str, test: str, passed: bool, error: str | None) -> None:
        results.append((capability, test, passed, error))

    await validate(saver, progress=ProgressCallbacks(on_test_result=note))
    assert [result for result in results if not result[2]] == []
    assert {capability for capability, *_ in results} == CAPABILITIES
    assert len(results) == TESTS
