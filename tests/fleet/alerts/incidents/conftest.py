"""Alerts of a run with stored steps."""

from collections.abc import Callable
from typing import Any

import pytest

from fleet.models import Alert, Node, Run
from tests.helpers import NOON

Make = Callable[..., Alert]


@pytest.fixture
def make(run: Run, limping: Node) -> Make:
    """Make alerts at will."""

    def make(**fields: Any) -> Alert:
        usual: dict[str, Any] = {
            "rule": "allreduce_share",
            "cause": "slow_core",
            "severity": Alert.Severity.PAGE,
            "subject": "run:llama",
            "run": run,
            "node": limping,
            "device": 7,
            "score": 1.2,
            "evidence": {"share_ratio": 0.31},
            "onset_at": fields.get("fired_at", NOON),
            "fired_at": NOON,
            "last_seen_at": NOON,
        }
        return Alert.objects.create(**usual | fields)

    return make
