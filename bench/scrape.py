"""A real Prometheus that finds the parts of a large fleet, and scrapes each of them once."""

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from django.conf import settings

from bench.cost import begin, jump_ahead
from bench.fleet import AGE_S, cpu_s, create_runs, fetched, specs_of, web_servers
from bench.table import print_table
from fleet.models import Token
from fleet.ops.sockets import free_port
from telemetry.store.hot import HotStore, open_store
from tests.fleet.prometheus_server import Prometheus
from tests.helpers import prometheus_command, running

# All series of 31,250 nodes would need 100 GB: the targets are scraped by one Prometheus after
# another, and of every page, read in full, the series of one node of so many are stored.
ROUNDS, KEPT_OF = 8, 16
# Nodes are up for two minutes after they were played.
INTERVAL_S, ROUND_WITHIN_S = 30, 110
MOST_BYTES = 5_000_000
FIGURES = {
    "up": "up",
    "series": "scrape_samples_scraped",
    "bytes": "scrape_body_size_bytes",
    "took_s": "scrape_duration_seconds",
}


def measure(
    env: Mapping[str, str], *, nodes: int = 1_000, runs: int = 16, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Let Prometheus discover a fleet and scrape it; print sizes, and what failed.

    With fewer than all ``rounds`` a sample of the targets is scraped.
    """
    hot, folder = open_store(settings.REDIS_URL), Path(settings.DATA_DIR)
    begin(hot, create_runs(hot, specs_of(nodes, runs), age_s=AGE_S))
    jump_ahead(hot)
    _, secret = Token.issue("bench", Token.Scope.SCRAPE, now=datetime.now(UTC))
    headers = {"Authorization": f"Bearer {secret}"}
    scraped: dict[tuple[str, ...], dict[str, float]] = {}
    used = {"web": 0.0, "prometheus": 0.0}
    peak_bytes = n_stored = 0
    with web_servers(folder, env) as (port, servers):
        listed = fetched(port, "/sd/prometheus", headers)
        if listed is None or listed.status != 200:
            raise RuntimeError(f"service discovery answers {listed and listed.status}")
        listing = listed.read()
        n_listed = len(json.loads(listing))
        for number in range(min(rounds, ROUNDS)):
            own, config = free_port(), config_of(port, secret, number)
            command = prometheus_command(
                folder / f"prometheus-{number}",
                own,
                config,
                "--enable-feature=extra-scrape-metrics",
            )
            before_s = cpu_s(servers)
            with running(command, folder / "prometheus.log") as process:
                program = psutil.Process(process.pid)
                scraped |= round_of(Prometheus(own), hot)
                peak_bytes = max(peak_bytes, program.memory_info().rss)
                [(_, stored)] = Prometheus(own).values('count({job="parts"})').items()
                n_stored += int(stored)
                used["prometheus"] += cpu_s({"it": program})["it"]
            used["web"] += sum(cpu_s(servers).values()) - sum(before_s.values())
    sizes = np.array([each["bytes"] for each in scraped.values()])
    n_series = int(sum(each["series"] for each in scraped.values()))
    failed = [target for target, each in scraped.items() if each["up"] != 1]
    by_path = {
        path or "/metrics": np.array([e["bytes"] for (_, of), e in scraped.items() if of == path])
        for path in sorted({path for _, path in scraped})
    }
    print_table(
        f"A Prometheus scrapes {nodes:,} nodes in {runs} runs, {rounds} of {ROUNDS} rounds",
        [
            ("targets listed", f"{n_listed:,}, {len(listing) / 1e6:.2f} MB"),
            ("of them scraped", f"{len(scraped):,}, {len(failed)} failed"),
            *(
                (
                    f"bytes of a target, {path}",
                    f"median {np.median(each) / 1e6:.2f} MB, most {each.max() / 1e6:.2f} MB",
                )
                for path, each in by_path.items()
            ),
            ("above 5 MB", f"{int((sizes > MOST_BYTES).sum())}"),
            ("all together", f"{n_series:,} series, {sizes.sum() / 1e9:.2f} GB"),
            ("stored, of one node in " + str(KEPT_OF), f"{n_stored:,} series"),
            ("Prometheus", f"{peak_bytes / 1e9:.2f} GB, {used['prometheus']:.0f} s CPU"),
            ("web servers", f"{used['web']:.0f} s CPU"),
        ],
    )
    return {
        "nodes": nodes,
        "runs": runs,
        "sample_of_targets": min(rounds, ROUNDS) / ROUNDS,
        "targets": n_listed,
        "scraped": len(scraped),
        "failed": len(failed),
        "failed_first": [list(target) for target in failed[:10]],
        "list_bytes": len(listing),
        "series": n_series,
        "series_stored": n_stored,
        "bytes": int(sizes.sum()),
        "largest_bytes": {path: int(each.max()) for path, each in by_path.items()},
        "median_bytes": {path: int(np.median(each)) for path, each in by_path.items()},
        "above_5_mb": int((sizes > MOST_BYTES).sum()),
        "slowest_s": round(max(each["took_s"] for each in scraped.values()), 1),
        "prometheus_bytes": peak_bytes,
        "cpu_s": {name: round(s, 1) for name, s in used.items()},
    }


def config_of(port: int, secret: str, number: int) -> dict[str, Any]:
    """Return how to scrape the targets of one round, and one node in some of each page."""
    web, bearer = f"http://127.0.0.1:{port}", {"type": "Bearer", "credentials": secret}
    return {
        "global": {"scrape_interval": f"{INTERVAL_S}s", "scrape_timeout": f"{INTERVAL_S}s"},
        "scrape_configs": [
            {
                "job_name": "parts",
                "honor_labels": True,
                "authorization": bearer,
                "http_sd_configs": [{"url": f"{web}/sd/prometheus", "authorization": bearer}],
                "relabel_configs": one_of(ROUNDS, ["instance", "__metrics_path__"], number),
                "metric_relabel_configs": one_of(KEPT_OF, ["node"], 0),
            }
        ],
    }


def one_of(n: int, labels: list[str], number: int) -> list[dict[str, Any]]:
    """Return the rules that keep one part of ``n``."""
    place = "__tmp_part"
    return [
        {"source_labels": labels, "modulus": n, "target_label": place, "action": "hashmod"},
        {"source_labels": [place], "regex": str(number), "action": "keep"},
    ]


def round_of(prometheus: Prometheus, hot: HotStore) -> dict[tuple[str, ...], dict[str, float]]:
    """Wait until each target of a Prometheus was scraped; return the figures of each."""
    deadline = time.monotonic() + ROUND_WITHIN_S
    jump_ahead(hot)
    while time.monotonic() < deadline:
        time.sleep(3)
        found = {
            figure: prometheus.values(name, "instance", "metrics_path")
            for figure, name in FIGURES.items()
        }
        known = prometheus.n_targets()
        if known and all(len(each) == known for each in found.values()):
            return {t: {f: each[t] for f, each in found.items()} for t in found["up"]}
    raise TimeoutError(f"not all targets were scraped in {ROUND_WITHIN_S} s")
