"""A real job over HTTP with one late worker; the alert names that worker."""

import time
from datetime import UTC, datetime

from fleet.alerts.evaluate import watch
from fleet.ingest.phases import update_reported_runs
from fleet.models import Alert, Run, Token
from telemetry.store.hot import HotStore
from tests.fleet.api.training_jobs import ABOUT, NODES
from tests.helpers import NOON
from tests.trnwatch.trainer import train, workers_of

ROUNDS = 12
# Some seconds: what is usual must be known.
HEALTHY_STEPS = 120


def test_the_alert_fires_and_names_the_node(address: str, hot: HotStore) -> None:
    secret = Token.issue("job", Token.Scope.INGEST, now=NOON)[1]
    workers = workers_of(address, secret, nodes=NODES, run="real", **ABOUT)
    train(workers, n_steps=HEALTHY_STEPS, compute_s=0.05)
    for i in range(ROUNDS):
        first = HEALTHY_STEPS + 1 + 10 * i
        train(workers, n_steps=10, first=first, compute_s=0.05, late_s={2: 0.1}, part="input")
        time.sleep(1.2)
        now = datetime.now(UTC)
        update_reported_runs(hot, now=now)
        watch(hot, now=now)
        found = Alert.objects.filter(rule="allreduce_share").exclude(node=None)
        if found.exclude(cause="unknown").exists():
            break
    for worker in workers:
        worker.finish()
    alert = Alert.objects.select_related("run", "node").get(rule="allreduce_share")

    assert alert.run == Run.objects.get(name="real")
    assert alert.node is not None
    assert (alert.node.name, alert.cause) == ("trn-c", "input_stall")
    assert alert.evidence["late_workers"] == ["trn-c"]
    assert alert.evidence["share_ratio"] > 0.25
    assert set(alert.victims) == {"trn-a", "trn-b", "trn-d"}
