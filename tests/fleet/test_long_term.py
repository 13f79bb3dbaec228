"""Real agents scrape trnwatch and write to real stores; pages and API read from there."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from django.test import Client
from pytest_django import Settings

from fleet.metrics.long_term import history_s
from fleet.models import Node
from telemetry.store.hot import HotStore
from tests.fleet.scraping import bearer
from tests.helpers import block, free_port, running, steps
from tests.long_term_stores import LongTermStore, Result, eventually, prometheus, victoria_metrics

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "deploy/prometheus/agent.yml"
AHEAD_S = 120
BUSY_RATIO, COMPUTE_S, TRANSFER_S, INPUT_S = 0.25, 0.6, 0.3, 0.1
TOKENS, LOSS = 4096.0, 2.5
MINUTE_S, HOUR_S = 60, 3600


def test_history_goes_back_as_far_as_it_is_kept(settings: Settings) -> None:
    settings.DURABLE_KEEP_DAYS = 3
    assert timedelta(seconds=history_s()) == timedelta(days=3)

    settings.LONG_TERM_READ_URL = "http://127.0.0.1:1"
    assert history_s() > timedelta(days=3650).total_seconds()


def configured(folder: Path, address: str, store: LongTermStore) -> Path:
    """Write the documented example with the addresses of a test, in a hurry."""
    config = yaml.safe_load(EXAMPLE.read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s"}
    (folder / "token").write_text(bearer()["Authorization"].removeprefix("Bearer "))
    for job in config["scrape_configs"]:
        job["scheme"] = "http"
        job["authorization"]["credentials_file"] = str(folder / "token")
        for each in job.get("static_configs", ()):
            each["targets"] = [address.removeprefix("http://")]
        for each in job.get("http_sd_configs", ()):
            each |= {"url": f"{address}/sd/prometheus", "refresh_interval": "1s"}
            each["authorization"]["credentials_file"] = str(folder / "token")
    [write] = config["remote_write"]
    write |= {"url": f"{store.url}/api/v1/write", "queue_config": {"batch_send_deadline": "1s"}}
    (folder / "agent.yml").write_text(json.dumps(config))
    return folder / "agent.yml"


def vmagent(config: Path, store: LongTermStore) -> list[str]:
    return [
        "vmagent",
        f"-promscrape.config={config}",
        "-promscrape.config.strictParse=false",
        f"-remoteWrite.url={store.url}/api/v1/write",
        f"-remoteWrite.tmpDataPath={config.parent / 'waiting'}",
        f"-httpListenAddr=127.0.0.1:{free_port()}",
    ]


def prometheus_agent(config: Path, _: LongTermStore) -> list[str]:
    return [
        "prometheus",
        "--enable-feature=agent",
        f"--config.file={config}",
        f"--storage.agent.path={config.parent / 'waiting'}",
        f"--web.listen-address=127.0.0.1:{free_port()}",
    ]


AGENTS = {"vmagent": (vmagent, victoria_metrics), "prometheus": (prometheus_agent, prometheus)}


@pytest.fixture(
    params=[
        pytest.param("vmagent", marks=pytest.mark.victoria),
        pytest.param("prometheus", marks=pytest.mark.prometheus),
    ]
)
def store(
    request: pytest.FixtureRequest, tmp_path: Path, address: str, hot: HotStore, steady: Node
) -> Iterator[LongTermStore]:
    """Run an agent and a store while a node and a run report."""
    now = int(time.time())
    ticks = range(now - 30, now + AHEAD_S)
    hot.append([block(tick=tick, nodes=["steady"], fill=BUSY_RATIO) for tick in ticks])
    made = steps(
        n_steps=AHEAD_S,
        ended_at_s=now - 30,
        tokens=TOKENS,
        compute_s=COMPUTE_S,
        transfer_s=TRANSFER_S,
        input_s=INPUT_S,
    )
    hot.append_steps(replace(made, reported_loss=np.full(len(made), LOSS)))
    agent, kept_by = AGENTS[request.param]
    (tmp_path / "store").mkdir()
    with kept_by(tmp_path / "store") as running_store:
        config = configured(tmp_path, address, running_store)
        with running(agent(config, running_store), tmp_path / "agent.log"):
            yield running_store


def test_what_was_scraped_is_read_where_the_database_has_nothing(
    store: LongTermStore, hot: HotStore, admin_client: Client, settings: Settings
) -> None:
    for name in ("trnwatch_core_utilization_ratio", "trnwatch_run_phase_seconds"):
        assert eventually(partial(shown, store, name)), name
    # Nothing was rolled up yet: from now on only the store knows.
    hot.execute("FLUSHDB")
    settings.LONG_TERM_READ_URL = store.url

    expected = {
        ("nodes/steady", "core_utilization_ratio"): BUSY_RATIO,
        ("nodes/steady", "vcpu_usage_ratio"): BUSY_RATIO,
        ("runs/llama", "step_s"): COMPUTE_S + TRANSFER_S + INPUT_S,
        ("runs/llama", "compute_s"): COMPUTE_S,
        ("runs/llama", "input_s"): INPUT_S,
        ("runs/llama", "allreduce_share_ratio"): TRANSFER_S,
        ("runs/llama", "tokens_per_s"): TOKENS,
    }
    for (of, metric), value in expected.items():
        found = read(admin_client, of, metric)
        # The hot tier keeps ratios to 0.4 %.
        assert found == pytest.approx([value] * len(found), rel=0.01), metric
        assert found, metric
    now = int(time.time())
    for page, value in (
        ("nodes/steady/charts/vcpu", BUSY_RATIO),
        ("runs/llama/charts/loss", LOSS),
    ):
        asked = {"from": now - HOUR_S, "to": now + MINUTE_S}
        chart = admin_client.get(f"/{page}", asked).json()
        assert chart["reach"][0]["tier"] == "long term", page
        values = [each for each in chart["series"][0]["values"] if each is not None]
        assert values == pytest.approx([value] * len(values), rel=0.01), page
        assert values, page


def shown(store: LongTermStore, query: str) -> Result:
    store.flush()
    return store.ask("query", query=query, nocache=1)


def read(client: Client, of: str, metric: str) -> list[float]:
    """Return the values of an hour; all come from the store."""
    until = datetime.now(UTC) + timedelta(minutes=1)
    asked = {"metric": metric, "since": f"{until - timedelta(hours=1)}", "until": f"{until}"}
    found = client.get(f"/api/v1/{of}/series", asked).json()
    assert {part["tier"] for part in found["stretches"] if part["since_s"] < time.time()} == {
        "long term"
    }
    return [each for part in found["parts"] for each in part["values"] if each is not None]
