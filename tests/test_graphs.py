"""Real graphs on a real S3 server leave exactly the traces that they leave in `InMemorySaver`."""

import asyncio

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from observing import Durability
from savers import Server, async_saver, sync_saver
from scenarios import CONFIG, DURABILITIES, SCENARIOS

every_scenario = pytest.mark.parametrize("name", SCENARIOS)
every_durability = pytest.mark.parametrize("durability", DURABILITIES)
# What meets a saver's threads and loops in different ways; all scenarios would take a minute more.
some_scenarios = pytest.mark.parametrize(
    "name",
    [
        "interrupt",
        "parallel interrupts",
        "subgraph with interrupt",
        "fan-out of 20",
        "delta channel of a fan-out",
        "failing node",
        "functional",
    ],
)


@every_durability
@every_scenario
def test_sync_graph_on_sync_saver(seaweed: Server, prefix: str, name: str, durability: Durability) -> None:
    """Results, states, histories and stored writes equal those of the memory saver."""
    scenario = SCENARIOS[name]
    expected = scenario.run(scenario.build(InMemorySaver()), CONFIG, durability)
    with sync_saver(seaweed, prefix) as saver:
        found = scenario.run(scenario.build(saver), CONFIG, durability)
    assert found == expected


@every_durability
@every_scenario
async def test_async_graph_on_async_saver(seaweed: Server, prefix: str, name: str, durability: Durability) -> None:
    """Results, states, histories and stored writes equal those of the memory saver."""
    scenario = SCENARIOS[name]
    expected = await scenario.arun(scenario.build(InMemorySaver()), CONFIG, durability)
    async with async_saver(seaweed, prefix) as saver:
        found = await scenario.arun(scenario.build(saver), CONFIG, durability)
    assert found == expected


@some_scenarios
async def test_async_graph_on_sync_saver(seaweed: Server, prefix: str, name: str) -> None:
    """The sync saver's async methods serve a graph as well as its sync ones."""
    scenario = SCENARIOS[name]
    expected = await scenario.arun(scenario.build(InMemorySaver()), CONFIG, "async")
    with sync_saver(seaweed, prefix) as saver:
        found = await scenario.arun(scenario.build(saver), CONFIG, "async")
    assert found == expected


@some_scenarios
async def test_sync_graph_on_async_saver(seaweed: Server, prefix: str, name: str) -> None:
    """The async saver's sync methods serve a graph that runs in another thread than the saver's loop."""
    scenario = SCENARIOS[name]
    expected = scenario.run(scenario.build(InMemorySaver()), CONFIG, "async")
    async with async_saver(seaweed, prefix) as saver:
        await saver.aget_tuple(CONFIG)  # binds the saver to this loop
        found = await asyncio.to_thread(lambda: scenario.run(scenario.build(saver), CONFIG, "async"))
    assert found == expected


@some_scenarios
def test_history_is_read_by_another_saver(seaweed: Server, prefix: str, name: str) -> None:
    """What one saver stored, a saver that has seen nothing of it reads in full."""
    scenario = SCENARIOS[name]
    with sync_saver(seaweed, prefix) as writer:
        scenario.run(scenario.build(writer), CONFIG, "async")
        written = list(scenario.build(writer).get_state_history(CONFIG))
    with sync_saver(seaweed, prefix) as reader:
        assert list(scenario.build(reader).get_state_history(CONFIG)) == written
