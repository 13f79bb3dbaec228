"""Culprits: a throttled accelerator and a slow core can look the same."""

from fleet.alerts.text import AlertText, headline
from fleet.models import Alert, Node, Run
from tests.helpers import NOON


def test_where_an_accelerator_is_one_core_either_may_be_slow(run: Run, limping: Node) -> None:
    alert = Alert(
        rule="core_slow",
        cause="throttle",
        subject="node:limping",
        run=run,
        node=limping,
        device=2,
        onset_at=NOON,
        fired_at=NOON,
        last_seen_at=NOON,
    )
    assert "look the same" not in AlertText(alert, NOON).detail
    assert "core" not in headline(alert)
    limping.n_cores = limping.n_devices

    assert headline(alert) == "Device 2 of limping is throttled or has a slow core"
    alert.rule, alert.subject = "allreduce_share", "run:llama"
    assert "with one core per accelerator they look the same" in AlertText(alert, NOON).detail
