"""Who is blamed: a throttled accelerator of one core may as well have a slow core."""

from fleet.alerts.text import blamed, clause
from fleet.models import Alert, Node, Run
from tests.parts import NOON


def test_where_an_accelerator_is_one_core_either_may_be_slow(run: Run, limping: Node) -> None:
    alert = Alert(
        rule="core_slow",
        cause="throttle",
        subject="node:limping",
        run=run,
        node=limping,
        device=2,
        fired_at=NOON,
    )
    assert "look the same" not in blamed(alert)
    assert "core" not in clause(alert)
    limping.n_cores = limping.n_devices

    assert clause(alert) == "Device 2 of limping is throttled, or its only core is slow"
    assert "with one core per accelerator they look the same" in blamed(alert)
