"""Agent status on a node's page."""

import pytest

from fleet.models import Node
from fleet.pages.nodes import agent_problems
from telemetry.store.hot import HotStore, open_store
from telemetry.store.node_state import save_sidecars

REAL = Node(name="real", source=Node.Source.NEURON_MONITOR)


@pytest.fixture
def hot(redis_url: str) -> HotStore:
    """Give the store."""
    return open_store(redis_url)


def keep(hot: HotStore, **shown: object) -> None:
    """Store the node's agent status."""
    save_sidecars(hot, [("real", shown)])


def test_nothing_is_reported_while_all_is_well(hot: HotStore) -> None:
    assert agent_problems(hot, REAL) == []
    keep(hot, agent={"version": "1", "n_waiting": 2, "n_dropped": 0, "problem": None}, neuron=[])
    assert agent_problems(hot, REAL) == []


def test_what_was_lost_is_reported_and_why(hot: HotStore) -> None:
    shown = {"version": "1", "n_waiting": 1200, "n_dropped": 3100, "n_refused": 2}
    keep(hot, agent=shown | {"problem": "server: 503 Try again."})

    lost, waiting, problem = agent_problems(hot, REAL)
    assert "3,100 were dropped (spool full), 2 were rejected" in lost
    assert "1,200" in waiting
    assert "server: 503 Try again." in problem


def test_an_agent_that_was_asked_to_end_says_so(hot: HotStore) -> None:
    keep(hot, agent={"version": "1", "stopping": True})

    [stopping] = agent_problems(hot, REAL)
    assert "was asked to end" in stopping


def test_parts_that_the_driver_finds_unhealthy_are_named(hot: HotStore) -> None:
    devices = [{"index": 0, "unhealthy": []}, {"index": 3, "unhealthy": ["hbm", "link_efa"]}]
    keep(hot, neuron=devices)

    assert agent_problems(hot, REAL) == [
        "The Neuron driver reports as unhealthy: hbm, link_efa of device 3."
    ]
