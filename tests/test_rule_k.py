"""Rule K on random threads: what a prune leaves reads and goes on as before, and none of it is too much."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rule_k import Tally, check

# How many threads each test drives; there are as many tests as fit several processes.
DELTA_CHUNKS, PLAIN_CHUNKS, CHUNK = 9, 6, 20

TALLY: dict[bool, Tally] = {True: Tally(), False: Tally()}


@pytest.fixture(scope="module", autouse=True)
def _counts() -> Iterator[None]:
    """Print what was tried: `pytest -s` shows it."""
    yield
    for deltas, tally in TALLY.items():
        print(f"\nrule K, {'with' if deltas else 'without'} delta channels: {tally}")


@pytest.mark.parametrize("chunk", range(DELTA_CHUNKS))
def test_threads_with_delta_channels(chunk: int) -> None:
    """State, pending writes and histories are equal before and after, and every kept ancestor is needed."""
    tally = sum((check(seed) for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK)), Tally())
    TALLY[True] += tally
    # The trials are worth something: often more than the newest is needed, and often not all.
    assert tally.longer > tally.namespaces / 4
    assert tally.removed > 50
    assert tally.dropped > 5
    assert tally.continued > 2


@pytest.mark.parametrize("chunk", range(PLAIN_CHUNKS))
def test_threads_without_delta_channels(chunk: int) -> None:
    """Of a graph without delta channels exactly one checkpoint of each namespace is left."""
    tally = sum((check(seed, deltas=False) for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK)), Tally())
    TALLY[False] += tally
    assert tally.kept == tally.namespaces
    assert tally.removed > 50
    assert tally.continued > 2
