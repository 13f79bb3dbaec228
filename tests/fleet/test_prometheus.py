"""A real Prometheus scrapes a running server and answers queries."""

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from fleet.models import Node, Token
from telemetry.exporter.neuron_observer import OBSERVED
from telemetry.store.hot import HotStore
from tests.fleet.prometheus_server import Prometheus, eventually, prometheus
from tests.fleet.scraping import bearer
from tests.helpers import block, steps
from tests.telemetry.exporter.exporter_reference import BASE, OF_NODE, OF_RUNTIME
from tests.telemetry.exporter.test_efa import COUNTERS

pytestmark = pytest.mark.prometheus
# A node is up for 15 s after it reported.
UP_EVERY_S = 5
DATA = Path(__file__).parents[1] / "telemetry/ingest/data"
# Real nodes, and what each of them sends.
REAL = {
    "trn1-busy": "trn1.32xlarge",
    "trn2-busy": "trn2.48xlarge",
    "trn1-idle": "trn1.32xlarge-idle",
}
N_CORES = {"steady": 32, "trn1-busy": 32, "trn2-busy": 64}
OF_OBSERVER = {name for name in OBSERVED if name.startswith(("neuron_device_", "neuron_efa_"))}
# Names that AWS chose, and that Prometheus' own advice is against.
ADVISED_AGAINST = {
    *(f'{name} counter metrics should have "_total" suffix' for name in COUNTERS | OF_OBSERVER),
    *(
        f'{name} non-histogram and non-summary metrics should not have "_{ending}" suffix'
        for name in ("system_vcpu_count", *OBSERVED)
        for ending in ("count", "sum")
        if name.endswith(f"_{ending}")
    ),
}


def post(address: str, path: str, body: bytes) -> None:
    """Send lines to the ingest endpoint of nodes."""
    headers = bearer(Token.Scope.INGEST) | {"Content-Type": "application/x-ndjson"}
    urllib.request.urlopen(urllib.request.Request(address + path, body, headers), timeout=30)


@pytest.fixture
def fleet(address: str, hot: HotStore, steady: Node) -> str:
    """Let a simulated node and three real ones report, and a run make its steps."""
    now = int(time.time())
    for name, stream in REAL.items():
        line = (DATA / f"{stream}.ndjson").read_bytes().splitlines()[0]
        report = json.loads(line)
        report["instance_info"]["instance_id"] = f"i-{name}"
        post(address, f"/api/v1/ingest/neuron-monitor?node={name}", json.dumps(report).encode())
    efa = {"device": "rdmap16s27", "index": 0, "counters": {"tx_bytes": 12, "retrans_pkts": 3}}
    sent = {"at": time.time(), "efa": {"period": 1.0, "devices": [efa]}}
    post(address, "/api/v1/ingest/efa?node=trn2-busy", json.dumps(sent).encode())
    ahead = range(now, now + 110, UP_EVERY_S)
    hot.append(block(tick=tick, nodes=["steady"]) for tick in ahead)
    for name in REAL:
        hot.append(block(f"node:{name}", tick, [name]) for tick in ahead)
    hot.append_steps(steps(n_steps=120, ended_at_s=now - 20, compute_s=0.7, transfer_s=0.3))
    return address


def jobs(address: str, folder: Path) -> list[dict[str, Any]]:
    """Return how to scrape everything as one page, node by node, and with a token that lapsed."""
    secret = bearer()["Authorization"].removeprefix("Bearer ")
    (folder / "token").write_text(secret)
    lapsed = bearer(expires_at=timezone.now() - timedelta(hours=1))["Authorization"]
    target = address.removeprefix("http://")
    known = {"authorization": {"credentials_file": str(folder / "token")}}
    # Older Prometheus releases need the kind of credentials for discovery.
    shown = {"authorization": {"type": "Bearer", **known["authorization"]}}
    discovered = {"url": f"{address}/sd/prometheus", "refresh_interval": "1s", **shown}
    return [
        {"job_name": "all", **known, "static_configs": [{"targets": [target]}]},
        {
            "job_name": "neuron",
            "metrics_path": "/metrics/neuron",
            **known,
            "static_configs": [{"targets": [target]}],
        },
        {"job_name": "nodes", "honor_labels": True, **known, "http_sd_configs": [discovered]},
        {
            "job_name": "lapsed",
            "authorization": {"credentials": lapsed.removeprefix("Bearer ")},
            "static_configs": [{"targets": [target]}],
        },
    ]


@pytest.fixture
def scraping(fleet: str, tmp_path: Path) -> Iterator[Prometheus]:
    """Run a Prometheus that has scraped every target."""
    with prometheus(tmp_path, jobs(fleet, tmp_path)) as running:
        assert eventually(lambda: running.ask('up{job="all"} == 1'))
        assert eventually(lambda: len(running.ask('up{job="nodes"} == 1')) == 2 + 2 * len(REAL))
        assert eventually(lambda: running.ask('up{job="neuron"} == 1'))
        yield running


def test_prometheus_scrapes_the_fleet_and_answers(fleet: str, scraping: Prometheus) -> None:
    cores = scraping.values('count by (node) (trnwatch_core_utilization_ratio{job="all"})', "node")
    share = scraping.values('trnwatch_run_allreduce_share_ratio{run="llama",job="all"} > 0.25')
    firing = scraping.values('sum by (severity) (trnwatch_alerts_firing{job="all"})', "severity")

    assert cores["steady",] == 32
    assert share == {(): pytest.approx(0.3)}
    assert firing["page",] == 0
    check_targets(scraping)
    check_dropin_names(scraping)
    check_exemplars(scraping)
    check_pages(fleet)


def check_targets(scraping: Prometheus) -> None:
    """Every node is a target under its own name, and who has no good token gets nothing."""
    for path in ("", "/metrics/neuron"):
        one = f'up{{job="nodes",metrics_path="{path}"}}'
        up = scraping.values(one, "instance", "node", "run", "team", "instance_type")
        assert up["steady", "steady", "llama", "LLM", "trn1.32xlarge"] == 1
        assert up["trn2-busy", "trn2-busy", "", "", "trn2.48xlarge"] == 1
        assert len(up) == 1 + len(REAL)
    assert eventually(lambda: scraping.values('up{job="lapsed"}')) == {(): 0}


def check_dropin_names(scraping: Prometheus) -> None:
    """Every name of AWS' exporters is there, for each node that should have it, on both ways."""
    for job in ("neuron", "nodes"):
        names = "|".join((*OF_NODE, *OF_RUNTIME))
        every = f'count by (__name__, instance_id) ({{__name__=~"{names}",job="{job}"}})'
        busy = {"steady", "i-trn1-busy", "i-trn2-busy"}
        reported = {(name, node) for name in OF_RUNTIME for node in busy}
        reported |= {(name, node) for name in OF_NODE for node in busy | {"i-trn1-idle"}}
        assert set(scraping.values(every, "__name__", "instance_id")) == reported
        [one] = scraping.ask(f'instance_info{{job="{job}",instance_id="i-trn2-busy"}}')
        assert set(one["metric"]) >= BASE
        of_steady = f'{{__name__=~"node_amazonefa_.+",job="{job}",node="steady"}}'
        found = scraping.values(f"count by (__name__) ({of_steady})", "__name__")
        assert found == {(name,): 8 for name in (*COUNTERS, "node_amazonefa_info")}
        real = f'node_amazonefa_tx_bytes{{job="{job}",node="trn2-busy"}}'
        assert scraping.values(real, "device") == {("rdmap16s27",): 12}


def check_exemplars(scraping: Prometheus) -> None:
    """A run's steps have an example that leads to the run."""
    since_s = time.time() - 600
    found = eventually(
        lambda: scraping.exemplars('trnwatch_run_steps_total{job="all"}', since_s=since_s)
    )
    assert found[-1]["labels"]["run"] == "llama"
    assert found[-1]["labels"]["step"] == "120"
    assert found[-1]["labels"]["url"].endswith("/runs/llama/")
    assert float(found[-1]["value"]) == pytest.approx(1.0)


def check_pages(address: str) -> None:
    """Promtool has nothing to say of trnwatch's names, and of AWS's only what is known."""
    for path in ("/metrics", *(f"/metrics/nodes/{node}" for node in ("steady", *REAL))):
        assert advice_on(address, path) == set()
    assert advice_on(address, "/metrics/neuron") == ADVISED_AGAINST
    assert advice_on(address, "/metrics/neuron?node=trn2-busy") <= ADVISED_AGAINST


def advice_on(address: str, path: str) -> set[str]:
    """Return what promtool has to say of a page."""
    request = urllib.request.Request(address + path, headers=bearer())
    with urllib.request.urlopen(request, timeout=30) as response:
        page = response.read()
    check = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, check=False
    )
    assert len(page) > 5_000
    assert check.stdout == b""
    assert bool(check.returncode) == bool(check.stderr)
    return set(check.stderr.decode().splitlines())
