"""Real stores accept remote write, and PromQL returns what /metrics shows."""

import json
import re
from datetime import UTC, datetime

import pytest
from django.test import Client

from fleet.metrics.long_term import figures
from fleet.models import Node
from telemetry.long_term.writer import keep_figures
from telemetry.store.hot import HotStore
from tests.helpers import just_now
from tests.long_term_stores import LongTermStore, eventually
from tests.telemetry.long_term.writers import write_all, writer_to
from tests.telemetry.store.samples import training

EMPTY = re.compile(r'\w+="",?')


def scraped(client: Client) -> dict[str, float]:
    pages = [client.get(page).getvalue().decode() for page in ("/metrics", "/metrics/neuron")]
    lines = "".join(pages).splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    # A label without a value is none.
    return {EMPTY.sub("", series).replace(",}", "}"): float(value) for series, value in pairs}


def name_of(metric: dict[str, str]) -> str:
    found = sorted((k, json.dumps(v, ensure_ascii=False)) for k, v in metric.items())
    labels = ",".join(f"{k}={v}" for k, v in found if k != "__name__")
    return metric["__name__"] + (f"{{{labels}}}" if labels else "")


def is_core(series: str) -> bool:
    return series.startswith("neuroncore_utilization_ratio{")


@pytest.mark.django_db
def test_promql_gives_what_metrics_states(
    store: LongTermStore, hot: HotStore, admin_client: Client, steady: Node
) -> None:
    nodes = (steady.name, 'l"m\\p\u00fcg')

    def reported() -> tuple[int, dict[str, float]]:
        now_s = int(just_now().timestamp()) // 15 * 15
        hot.append(training(start=now_s - 29, n_ticks=30, nodes=nodes).blocks())
        now = datetime.fromtimestamp(now_s, UTC)
        keep_figures(hot, now_s, figures(hot, now=now), keep_s=900)
        return now_s, scraped(admin_client)

    # On a busy machine the reports are old before they are scraped: nodes count as silent then.
    now_s, page = eventually(reported, wants=lambda found: any(map(is_core, found[1])))

    write_all(writer_to(store.url + "/api/v1/write", hot, now_s=now_s + 31))

    store.flush()
    asked = {"query": '{__name__!=""}', "time": now_s + 14}
    found = eventually(
        lambda: {name_of(e["metric"]): float(e["value"][1]) for e in store.ask("query", **asked)},
        wants=lambda found: len(found) >= len(page),
    )
    # What grows by itself, or by the writing, has moved on since.
    moving = ("trnwatch_hot_bytes", "trnwatch_long_term", "trnwatch_run_cost_usd_total")
    kept = {name for name in page if not name.startswith(moving)}
    assert any(map(is_core, kept))
    assert len(kept) >= 700
    assert {name: found.get(name) for name in kept} == pytest.approx(
        {name: page[name] for name in kept}, rel=1e-9
    )
