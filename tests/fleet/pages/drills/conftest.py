"""A simulated run with a drill, and its alerts."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fleet.models import Alert, AlertEvent, InjectedFault, Run

LASTED = timedelta(minutes=3)
UNNOTICED = timedelta(seconds=6)


@pytest.fixture
def drilled(simulated: Run) -> Callable[..., InjectedFault]:
    """Put faults into the run, of which people know."""

    def drill(*, ago: timedelta = timedelta(minutes=30), **fields: Any) -> InjectedFault:
        starts_at = datetime.now(UTC).replace(microsecond=0) - ago
        usual: dict[str, Any] = {
            "run": simulated,
            "node": simulated.nodes.get(name="llama-01"),
            "kind": "slow_core",
            "device": 7,
            "magnitude": 1.5,
            "starts_at": starts_at,
            "ends_at": starts_at + LASTED,
            "injected_by": "olga",
        }
        return InjectedFault.objects.create(**usual | fields)

    return drill


@pytest.fixture
def noticed(simulated: Run) -> Callable[..., Alert]:
    """Let an alert fire about a fault, six seconds after it began, and resolve with it."""

    def notice(fault: InjectedFault, **fields: Any) -> Alert:
        usual: dict[str, Any] = {
            "rule": "core_slow",
            "cause": fault.kind,
            "severity": Alert.Severity.PAGE,
            "subject": f"node:{fault.node}",
            "run": fault.run,
            "node": fault.node,
            "device": fault.device,
            "score": 1.3,
            "onset_at": fault.starts_at + timedelta(seconds=1),
            "fired_at": fault.starts_at + UNNOTICED,
            "last_seen_at": fault.ends_at,
            "resolved_at": fault.ends_at + timedelta(seconds=20),
        }
        alert = Alert.objects.create(**usual | fields)
        AlertEvent.objects.create(alert=alert, at=alert.fired_at, kind=AlertEvent.Kind.FIRED)
        return alert

    return notice
