"""Prometheus rules on a simulated run: no alert while healthy, the right one with a fault."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drills.scenario import scenario_of
from telemetry.exporter.hardware import HARDWARE
from telemetry.simulate.shard import play, start_clock
from tests.fleet.metrics.rule_cases import FOUR, nodes, values
from tests.fleet.metrics.test_rules import promtool

EPOCH_S, LASTS_S, EVERY_S, SICK_S = 1_770_000_000, 720, 15, 360.0
SEEN = (
    "core_utilization_ratio",
    "hbm_bandwidth_bytes_per_s",
    "efa_latency_s",
    "efa_tx_bytes_per_s",
    "efa_tx_packets_per_s",
    "efa_retransmits_per_s",
)
RUN = {
    "name": "llama",
    "model": "llama2-7b",
    "instance": "trn1.32xlarge",
    "nodes": 4,
    "tp": 8,
    "seq_len": 4096,
    "global_batch": 64,
    "compile_s": 0,
}
NAMES = tuple(f"llama-{rank:02d}" for rank in range(len(FOUR)))
RULES = "core_slow|hbm_slow|efa_degraded"


def sick(kind: str, node: str, device: int, magnitude: float) -> dict[str, Any]:
    """Return a fault that begins halfway through, and stays."""
    fault = {"kind": kind, "node": node, "device": device, "magnitude": magnitude}
    return fault | {"start_s": SICK_S, "duration_s": 3600.0}


def scraped(*faults: dict[str, Any]) -> dict[str, str]:
    """Play a run, and return its series as they are at each scrape."""
    table = {
        "name": "x",
        "duration_s": LASTS_S,
        "seed": 3,
        # Cores that wait for others are idle here.
        "inputs": {"busy_while_waiting": False},
        "run": [RUN],
        "fault": [*faults],
    }
    (plan,) = scenario_of(table).plans(epoch_s=EPOCH_S)
    (shard,), clock = plan.shards, start_clock(plan)
    reported: dict[str, list[str]] = defaultdict(list)
    for at_s in range(0, LASTS_S, EVERY_S):
        played = play(plan, shard, clock, EPOCH_S + at_s + 1)
        clock, block = played.clock, list(played.span.blocks())[-1]
        for name in SEEN:
            spec = HARDWARE[name]
            for (row, part), value in np.ndenumerate(block.values[name]):
                labels = f'node="{block.nodes[row]}", {spec.labels[1]}="{part}"'
                text = f"{value:.6g}" if np.isfinite(value) else "_"
                reported[f"{spec.name}{{{labels}}}"].append(text)
    return {name: " ".join(texts) for name, texts in reported.items()}


def firing(minute: int, *alerts: str) -> dict[str, Any]:
    """Ask which alerts fire then; each is an alert's labels."""
    expr = "count by (alertname, node, core, device, kind) "
    return {
        "expr": f'{expr} (ALERTS{{alertstate="firing", alertname=~"{RULES}"}})',
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": labels, "value": 1} for labels in alerts],
    }


@pytest.mark.prometheus
def test_only_what_is_sick_is_reported_and_only_once_it_is(tmp_path: Path) -> None:
    series = scraped(sick("slow_core", "llama-01", 5, 0.3), sick("efa_loss", "llama-02", 3, 0.01))
    series |= {name: values(course) for name, course in nodes(*NAMES).items()}
    well = [firing(minute) for minute in (2, 4, 5)]
    reported = firing(
        11,
        '{alertname="core_slow", node="llama-01", core="5"}',
        '{alertname="efa_degraded", node="llama-02", device="3", kind="loss"}',
    )
    test = {
        "interval": f"{EVERY_S}s",
        "input_series": [{"series": name, "values": text} for name, text in series.items()],
        "promql_expr_test": [*well, reported],
    }

    assert promtool(tmp_path, [test], every_s=30) == ""
