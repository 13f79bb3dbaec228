"""Nodes for preflights."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pytest_django import Settings

from fleet.checks.preflights import request_preflight, run_all_stages
from fleet.models import Preflight
from telemetry.simulate.preflight import ProbeFault
from tests.helpers import NOON

SIXTEEN = tuple(f"n-{i:02d}" for i in range(16))
# One bad EFA device, one bad pair, and one node short of a chip.
BAD = (
    ProbeFault.of_kind("efa_latency", "n-03", device=5, magnitude=3),
    ProbeFault.of_kind("pair_slow", "n-06", peer="n-11", magnitude=2),
    ProbeFault.of_kind("chip_missing", "n-09"),
)


@pytest.fixture
def _rehearsing(settings: Settings) -> None:
    """Let faults be put into nodes that are simulated."""
    settings.ALLOW_DRILLS = True


@pytest.fixture
def asked(db: None, _rehearsing: None) -> Callable[..., Preflight]:
    """Ask for a preflight of nodes that the fleet does not know."""

    def asking(names: Sequence[str] = SIXTEEN, **fields: Any) -> Preflight:
        given: dict[str, Any] = {"instance_type": "trn2.48xlarge", "by": "ada", "now": NOON}
        return request_preflight(names, **given | fields)

    return asking


@pytest.fixture
def done(asked: Callable[..., Preflight]) -> Callable[..., Preflight]:
    """Ask for a preflight, and take it to its end."""

    def doing(names: Sequence[str] = SIXTEEN, **fields: Any) -> Preflight:
        preflight = asked(names, **fields)
        run_all_stages(preflight, now=fields.get("now", NOON))
        return preflight

    return doing
