"""One fault as detection reports it, and a function that evaluates the fleet."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User

from fleet.alerts import reconcile
from fleet.models import Alert, Node, Run
from telemetry.detect.findings import Finding
from tests.fleet.alerts.faults import EVERYTHING
from tests.helpers import NOON

Evaluate = Callable[..., list[Alert]]


@pytest.fixture
def finding(run: Run, limping: Node) -> Finding:
    return Finding(
        rule="allreduce_share",
        cause="slow_core",
        severity="page",
        run=run.name,
        node=limping.name,
        device=17,
        onset_s=NOON.timestamp() - 12,
        score=1.2,
        victims=("steady",),
        evidence={"share_ratio": 0.3},
    )


@pytest.fixture
def evaluate(db: None) -> Evaluate:
    """Reconcile all rules with the given findings, some seconds after noon."""

    def at(second: float, *findings: Finding) -> list[Alert]:
        return reconcile(findings, evaluated=EVERYTHING, now=NOON + timedelta(seconds=second))

    return at


@pytest.fixture
def bob(db: None) -> User:
    """Create an operator."""
    user = User.objects.create_user("bob")
    user.groups.add(Group.objects.get(name="operator"))
    return user
