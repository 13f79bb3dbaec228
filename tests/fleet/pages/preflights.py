"""Preflights for page tests."""

from typing import Any

from fleet.checks.preflights import request_preflight, run_all_stages
from fleet.models import Preflight
from tests.fleet.checks.conftest import BAD, SIXTEEN
from tests.helpers import NOON


def asked(**fields: Any) -> Preflight:
    """Ask for sixteen nodes, of which three are bad and two do not get on."""
    given: dict[str, Any] = {
        "instance_type": "trn2.48xlarge",
        "take": 12,
        "by": "ada",
        "now": NOON,
        "faults": BAD,
    }
    return request_preflight(fields.pop("names", SIXTEEN), **given | fields)


def done(**fields: Any) -> Preflight:
    """Ask for them, and wait for the verdict."""
    preflight = asked(**fields)
    run_all_stages(preflight, now=NOON)
    return preflight
