"""The error budget, divided among the rules."""

import pytest

from telemetry.detect.rules import RULES, SEVERITIES
from telemetry.evidence.budget import Severity, per_year, share


@pytest.mark.parametrize("severity", ["page", "warn"])
def test_the_shares_of_all_rules_add_up_to_the_budget(severity: Severity) -> None:
    shares = [
        share(rule, severity, severities=SEVERITIES, pages_per_year=2.5) for rule in SEVERITIES
    ]

    assert sum(shares) == pytest.approx(per_year(severity, 2.5))


def test_a_rule_has_a_share_of_what_it_can_raise() -> None:
    pages = {rule for rule in SEVERITIES if share(rule, "page", severities=SEVERITIES) > 0}

    # Recompilations page when they cost much, though most are warnings.
    assert {"hang", "step_slow", "recompile"} <= pages
    assert not pages & {"node_idle", "loss_spike", "preflight", "budget_overrun"}
    assert all(share(rule, "warn", severities=SEVERITIES) > 0 for rule in RULES)


def test_a_rule_of_another_release_has_no_share() -> None:
    assert share("long_gone", "page", severities=SEVERITIES) == 0.0
