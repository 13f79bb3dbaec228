"""Recorded reports, and one to modify."""

import copy
import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
SAMPLES = ("trn1.2xlarge", "trn1.32xlarge", "trn1.32xlarge-idle", "trn2.48xlarge")


def stream(sample: str) -> bytes:
    """Return a recorded stream."""
    return (DATA / f"{sample}.ndjson").read_bytes()


def lines(sample: str) -> list[bytes]:
    """Return its lines."""
    return stream(sample).splitlines()


def report(sample: str = "trn2.48xlarge") -> dict[str, Any]:
    """Return its first report, to be changed at will."""
    document: dict[str, Any] = copy.deepcopy(json.loads(lines(sample)[0]))
    return document


def group(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a group of the report's first process."""
    found: dict[str, Any] = document["neuron_runtime_data"][0]["report"][name]
    return found


def cores(document: dict[str, Any]) -> dict[str, Any]:
    """Return the cores that the report's first process holds."""
    found: dict[str, Any] = group(document, "neuroncore_counters")["neuroncores_in_use"]
    return found


def encoded(document: Any) -> bytes:
    """Write a document as a line."""
    return json.dumps(document).encode()
