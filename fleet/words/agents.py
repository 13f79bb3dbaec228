"""What is said of a node's agent and of its driver's health: nothing, as long as all is well."""

from typing import Any

from fleet.models import Node
from telemetry.store.beside import Said, said_beside
from telemetry.store.connection import Connection

# So many lines wait when a minute or two could not be sent.
MANY_WAITING = 90
COUNTED = {
    "n_dropped": "were dropped because its spool was full",
    "n_refused": "were refused",
    "n_skipped": "could not be read or kept",
}


def agent_words(hot: Connection, node: Node) -> list[str]:
    """Return what is wrong with a node's agent and its devices' health, in sentences."""
    if node.source == Node.Source.SIMULATED:
        return []
    agent = said_beside(hot, "agent", [node.name]).get(node.name)
    driver = said_beside(hot, "neuron", [node.name]).get(node.name)
    return [*_agent(agent), *_driver(driver)]


def _agent(told: Said | None) -> list[str]:
    """Say what the agent lost or waits with, and what hinders it."""
    if told is None:
        return []
    said: dict[str, Any] = told.said
    words = []
    lost = [f"{said[name]:,} {what}" for name, what in COUNTED.items() if said.get(name)]
    if lost:
        words.append(f"Of its agent's reports since that started, {', '.join(lost)}.")
    if said.get("n_waiting", 0) > MANY_WAITING:
        words.append(f"Its agent has {said['n_waiting']:,} reports still to send.")
    if problem := said.get("problem"):
        words.append(f"Its agent says: {problem.rstrip('.')}.")
    return words


def _driver(told: Said | None) -> list[str]:
    """Say which parts of which devices the Neuron driver holds to be unhealthy."""
    devices: list[dict[str, Any]] = told.said if told else []
    bad = [
        f"{', '.join(device['unhealthy'])} of device {device['index']}"
        for device in devices
        if device.get("unhealthy")
    ]
    return [f"The Neuron driver finds unhealthy: {'; '.join(bad)}."] if bad else []
