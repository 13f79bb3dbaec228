"""The command line of the benchmarks."""

import importlib
import inspect
import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis

from bench import __main__ as command
from bench import fleet, lives, table
from bench.cost import COMMITTED, REST, SIZES, STAGES, WATCH, Stages
from bench.detection import append_cache, read_cache, state_of_code, without_prose
from bench.installation import ROOT
from fleet.models import Run
from telemetry.simulate.plan import Plan
from telemetry.simulate.shard import play, start_clock
from telemetry.store.hot import HotStore
from telemetry.store.reading import Reader
from tests.helpers import NOON_S, Clock


@pytest.mark.parametrize("name", command.CHOICES)
def test_every_benchmark_takes_the_environment_and_its_options(name: str) -> None:
    parameters = inspect.signature(importlib.import_module(f"bench.{name}").measure).parameters
    assert tuple(parameters)[1:] == command.OPTIONS.get(name, ())


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["nonsense"], "'nonsense' is not a benchmark. Choose from store"),
        (["fleet", "--nodes", "0"], "--nodes: 0 is below 1"),
        (["fleet", "--runs", "0"], "--runs: 0 is below 1"),
        (["store", "--hours", "3"], "--hours is an option of healthy"),
    ],
)
def test_a_wrong_argument_is_refused_with_what_would_do(
    arguments: list[str], shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(arguments)
    assert refused.value.code == 2
    assert shown in capsys.readouterr().err


@pytest.mark.parametrize(
    ("nodes", "runs", "sizes"),
    [
        (10, 4, {3, 2}),
        (31_250, 1, {31_250}),
        # Of many runs one is large, and some have a single node.
        (31_250, 40, {4_000, 778, 779, 1}),
        (20, 10, {10, 2, 1}),
    ],
)
def test_a_fleet_is_divided_over_runs_that_can_be_played(
    nodes: int, runs: int, sizes: set[int]
) -> None:
    specs = fleet.specs_of(nodes, runs)

    assert sum(spec.nodes for spec in specs) == nodes
    assert {spec.nodes for spec in specs} == sizes
    assert len({spec.name for spec in specs}) == runs
    for spec in specs[:: max(1, runs - 1)]:
        plan = Plan(run=spec, seed=1, epoch_s=NOON_S)
        assert play(plan, plan.shards[0], start_clock(plan), NOON_S + 1).span.nodes


@pytest.mark.django_db
def test_a_life_says_what_fired_and_what_is_wrong(redis: Redis) -> None:
    """Two jobs with one name: the second is refused. One that stops: its alert was not allowed."""
    one_name, stopped = (
        replace(lives.LIVES[name], agents=False, tier="hooks_only", allows=())
        for name in ("one_name", "stopped")
    )
    clock = Clock(float(NOON_S))
    starts = [replace(start, from_s=start.from_s // 4) for start in one_name.starts]
    hot, played = HotStore(redis, now=clock), []
    for life in (replace(one_name, starts=starts), replace(stopped, pauses=(60, 100))):
        redis.flushdb()
        Run.objects.all().delete()
        clock.now_s += lives.KEEP_S
        player = lives.Player(life, hot, clock, until_s=110).play()
        played.append((player.wrong()[0], set(player.refused)))

    assert played[0] == ([], {f"trn-0{i}" for i in range(4, 8)})
    [[wrong], refused] = played[1]
    assert re.fullmatch(r"false warn: workers_ended after 8\d s", wrong)
    assert not refused
    codes = [command.exit_code(figures) for figures in (None, {"n_wrong": 0}, {"n_wrong": 2})]
    assert codes == [0, 0, 1]


def test_senders_of_a_life_come_back_one_by_one() -> None:
    """After an outage each is back within half a minute; half of the wait is chance."""
    jitter = random.Random(1).random
    back_s = []
    for sender in (lives.Sender(every_s=1, next_s=1, max_lines=2) for _ in range(20)):
        sender.lines = [b"{}"] * 3
        arrived = [len(sender.take(s, jitter, is_cut_off=s < 120)) for s in range(200)]
        back_s.append(arrived.index(2))
        assert arrived[back_s[-1] + 1 :][:2] == [1, 0]

    assert 120 <= min(back_s) <= 125
    assert 140 <= max(back_s) <= 150


def test_the_cost_of_a_stage_leaves_out_what_others_in_it_take() -> None:
    now_s = [0.0]
    stages, last_seen = Stages(lambda: now_s[0]), Reader.last_seen

    with stages.timed():
        assert Reader.last_seen is not last_seen
        with stages.stage("evaluate"):
            now_s[0] += 1
            with stages.stage("detect"), stages.stage("read"):
                now_s[0] += 2
            now_s[0] += 4
        now_s[0] += 8

    assert stages.spent_s == {"evaluate": 5.0, "detect": 0.0, "read": 2.0}
    assert Reader.last_seen is last_seen


def test_the_committed_costs_are_of_all_sizes_and_stages() -> None:
    committed = json.loads(COMMITTED.read_text())
    assert {*committed} == {str(nodes) for nodes in SIZES}
    for stages in committed.values():
        assert {"play", "commit", "watch", "rest", *STAGES, *WATCH, *REST} == {*stages}


def test_json_is_one_object_with_every_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table, "_as_json", False)
    monkeypatch.setattr(table, "_tables", [])
    table.collect_json()
    table.print_table("Pages", [("/", "p50 3 ms")])
    table.print_json("pages", None)
    found = json.loads(capsys.readouterr().out)
    assert found == {
        "bench": "pages",
        "tables": [{"title": "Pages", "figures": [["/", "p50 3 ms"]]}],
    }


def test_no_body_takes_the_web_process() -> None:
    """Memory and CPU are bounds of the process, not of the machine: others may compute."""
    command = [sys.executable, "-m", "bench", "bodies", "--times=1", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    rows = json.loads(done.stdout)["bodies"]
    # No body takes much longer than the largest one that is taken, on whatever machine.
    most_s = 3 * max(row["cpu_s"] for row in rows if "taken" in row["body"])
    for row in rows:
        assert set(row["statuses"]) <= {200, 204, 400, 413, 415}, row
        assert row["grown_bytes"] < 50_000_000, row
        assert row["cpu_s"] <= most_s, row
        assert not row["health_failed"], row


def test_a_measurement_that_was_ended_keeps_what_was_over(tmp_path: Path) -> None:
    cache = tmp_path / "bench" / "healthy.jsonl"
    append_cache(cache, {"scenario": "hooks-0", "alerts": [{"rule": "hang"}]})
    cut_off = cache.read_text()[:-2]
    cache.write_text(cache.read_text() + cut_off)
    append_cache(cache, {"scenario": "hooks-1"})
    assert [each["scenario"] for each in read_cache(cache)] == ["hooks-0", "hooks-1"]


def test_results_outlast_a_change_of_prose_but_not_of_code() -> None:
    code = without_prose("def rate():\n    return 1\n", Path("rate.py"))
    prose = 'def rate():\n    """Of what."""\n    # Why.\n    return 1\n'
    assert without_prose(prose, Path("rate.py")) == code
    assert without_prose("def rate():\n    return 2\n", Path("rate.py")) != code
    assert state_of_code() == state_of_code()
