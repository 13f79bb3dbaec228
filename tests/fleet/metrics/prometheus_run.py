"""A real Prometheus with trnwatch's rules, scraping a running trnwatch."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import yaml

from fleet.models import Alert, Budget, Node, Run, Token
from fleet.simulation.runs import create_run
from telemetry.simulate.plan import Plan
from telemetry.simulate.shard import play, start_clock
from telemetry.store.hot import HotStore
from tests.helpers import LLAMA, free_port, prometheus_command, running

TIMEOUT_S = 90.0
# What a run has behind it, and for how long it goes on without anybody who plays it.
PAST_S, AHEAD_S = 120, 120
RUN, NODE, MISSING = LLAMA.name, f"{LLAMA.name}-00", "missing"
# What finds something once every node is heard of.
ALL_NODES = f"count(group by (node) (trnwatch_node_info)) == {LLAMA.nodes + 1}"
# What finds something once the rules have found out who is missing.
SILENCE = 'ALERTS{alertname="node_silent", alertstate="firing"}'
ZONE = "us-east-1a"
Question = Callable[[str], Any]


def settle(hot: HotStore, *, now: datetime) -> None:
    """Let four nodes train, one be missing, and an alert be open."""
    at_s = int(now.timestamp())
    started_at = now - timedelta(seconds=PAST_S)
    run = create_run(LLAMA, started_at=started_at, team="LLM", zone=ZONE)
    Run.objects.filter(pk=run.pk).update(phase=Run.Phase.TRAINING)
    train(hot, Plan(run=LLAMA, seed=run.pk, epoch_s=at_s - PAST_S), until_s=at_s + AHEAD_S)
    hot.gauge("tick_lateness_s", 0.4)
    hot.gauge("watched_at_s", at_s)
    Node.objects.create(
        name=MISSING,
        instance_type=LLAMA.instance,
        source=Node.Source.NEURON_MONITOR,
        shard="missing",
        run=run,
        n_cores=32,
        n_devices=16,
        first_seen_at=now,
    )
    month = {"starts_at": now - timedelta(days=15), "ends_at": now + timedelta(days=15)}
    Budget.objects.create(team="LLM", usd=100_000, set_by="ada", set_at=now, **month)
    Alert.objects.create(
        rule="allreduce_share",
        severity=Alert.Severity.PAGE,
        subject=f"run:{RUN}",
        run=run,
        score=2.0,
        onset_at=now,
        fired_at=now,
        last_seen_at=now,
    )


def train(hot: HotStore, plan: Plan, *, until_s: int) -> None:
    """Play a run, all at once."""
    for shard in plan.shards:
        played = play(plan, shard, start_clock(plan), until_s)
        steps = played.steps if shard == plan.shards[0] else None
        clock, blocks = msgspec.json.encode(played.clock), tuple(played.span.blocks())
        hot.commit(shard, before=None, after=clock, blocks=blocks, steps=steps)
        hot.count("ticks", len(blocks))


def leave() -> None:
    """Take away what was settled."""
    for model in (Alert, Budget, Node, Run, Token):
        model.objects.all().delete()


def token() -> str:
    """Make a token that may scrape."""
    _, secret = Token.issue("prometheus", Token.Scope.SCRAPE, now=datetime.now(UTC))
    return secret


def configured(example: Path, folder: Path, target: str, secret: str) -> Mapping[str, Any]:
    """Return an example of configuration for this machine, in a hurry."""
    (folder / "token").write_text(secret)
    config: dict[str, Any] = yaml.safe_load(example.read_text())
    config["global"] |= {"scrape_interval": "2s", "scrape_timeout": "2s"}
    config["global"]["evaluation_interval"] = "1s"
    config["rule_files"] = [str(example.parent / each) for each in config["rule_files"]]
    # No notification is sent here.
    del config["alerting"]
    config.pop("remote_write", None)
    for job in config["scrape_configs"]:
        job["scheme"] = "http"
        job["authorization"]["credentials_file"] = str(folder / "token")
        for source in job.get("static_configs", ()):
            source["targets"] = [target.removeprefix("http://")]
        for source in job.get("http_sd_configs", ()):
            source |= {"url": f"{target}/sd/prometheus", "refresh_interval": "1s"}
            source["authorization"]["credentials_file"] = str(folder / "token")
    return config


@contextmanager
def prometheus(folder: Path, config: Mapping[str, Any]) -> Iterator[Question]:
    """Run Prometheus; gives how to ask its API for a path."""
    port = free_port()
    with running(prometheus_command(folder, port, config), folder / "prometheus.log"):
        yield lambda path: ask(f"http://127.0.0.1:{port}/api/v1/{path}")


def ask(address: str) -> Any:
    """Return the data that an address answers, or in words why there are none."""
    try:
        with urllib.request.urlopen(address, timeout=10) as response:
            return json.load(response)["data"]
    except urllib.error.HTTPError as error:
        with error:
            return error.read().decode(errors="replace")
    except (urllib.error.URLError, ConnectionError) as error:
        return f"not yet: {error}"


def query(question: Question, expr: str) -> Any:
    """Return the series that an expression finds, or in words why it cannot be asked."""
    found = question(f"query?{urllib.parse.urlencode({'query': expr})}")
    return found if isinstance(found, str) else found["result"]


def all_answers(question: Question, asked: set[str], rare: set[str]) -> dict[str, Any]:
    """Query until every expression that is not rare has a result, or time is over."""
    deadline = time.monotonic() + TIMEOUT_S
    answers: dict[str, Any] = {}
    while time.monotonic() < deadline:
        answers |= {
            expr: query(question, expr) for expr in asked if not has_result(answers.get(expr))
        }
        if all(has_result(answers[expr]) for expr in asked - rare):
            break
        time.sleep(1)
    return answers


def has_result(answer: Any) -> bool:
    """Whether a result has at least one series."""
    return isinstance(answer, list) and bool(answer)
