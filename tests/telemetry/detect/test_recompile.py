"""A stop to compile is an alert only if it was not announced."""

import json
from typing import Any

import numpy as np
import pytest

from telemetry.blocks import Span
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.recompile import recompile
from telemetry.simulate.plan import Benign, Fault
from tests.telemetry.detect.lives import life, spells
from tests.telemetry.detect.played import EPOCH
from tests.telemetry.detect.runs import CHARACTERS, steps_at


def compilation(magnitude: float, **more: Any) -> Fault:
    given = {"start_s": 120.0, "duration_s": 30.0} | more
    return Fault(kind="recompile", run="run", magnitude=magnitude, **given)


def event(kind: str, **more: Any) -> Benign:
    return Benign(kind=kind, run="run", start_s=120, **more)


@pytest.mark.parametrize("run", ["trn1", "trn2", "p5"])
def test_a_compilation_under_way_is_found_soon_and_ends_with_its_step(run: str) -> None:
    lived = life(run, duration_s=260, faults=[compilation(60)])
    (spell,) = spells(lived)
    assert (spell.rule, spell.cause, spell.node) == ("recompile", "recompile", None)
    assert spell.first_s <= 120 + 15
    steps = lived.recording.steps
    over = int(np.argmax(steps.step_s))
    assert (
        steps.ended_at_s[over] - EPOCH <= spell.last_s <= steps.ended_at_s[over + 2] - EPOCH + 10
    )


def test_its_evidence_states_what_was_lost() -> None:
    lived = life("trn1", duration_s=220, faults=[compilation(40)])
    each_second = [found[0] for _, found in lived.watch() if found]
    first, last = each_second[0].evidence, each_second[-1].evidence
    assert (first["is_over"], last["is_over"]) == (False, True)
    assert last["lost_s"] == pytest.approx(40, abs=1)
    assert each_second[-1].onset_s - EPOCH == pytest.approx(122, abs=4)
    assert json.loads(json.dumps(first, allow_nan=False)) == first


@pytest.mark.parametrize("seconds", [3.0, 6.0, 10.0])
def test_a_short_one_is_recognised_once_its_step_is_over(seconds: float) -> None:
    lived = life("p5", duration_s=200, faults=[compilation(seconds)])
    (spell,) = spells(lived)
    assert spell.rule == "recompile"
    assert spell.first_s <= 120 + seconds + 6


def test_one_that_lasts_longer_than_ten_minutes_pages() -> None:
    lived = life("trn1", duration_s=800, faults=[compilation(900, duration_s=650)])
    found = {second: each[0] for second, each in lived.watch() if each}
    assert (found[200].severity, found[790].severity) == ("warn", "page")
    assert {each.rule for each in found.values()} == {"recompile"}


@pytest.mark.parametrize(
    "look_alike",
    [
        event("planned_compile", duration_s=60),
        event("evaluation", duration_s=60),
        event("checkpoint", duration_s=60),
    ],
    ids=lambda benign: benign.kind,
)
def test_what_is_announced_or_no_compilation_is_not_found(look_alike: Benign) -> None:
    lived = life("trn1", duration_s=260, benign=[look_alike])
    assert [second for second, found in lived.watch() if found] == []


def test_a_cron_job_while_the_only_node_writes_a_checkpoint_is_no_compilation() -> None:
    lived = life(
        "trn1",
        nodes=1,
        global_batch=16,
        duration_s=260,
        benign=[
            event("checkpoint", duration_s=90),
        ],
    )
    hosts = lived.recording.span.values["vcpu_usage_ratio"]
    stands = slice(165, 185)
    hosts[stands] = np.fmax(hosts[stands], 0.32)
    hosts[150:165] = np.fmax(hosts[150:165], 0.32)
    hosts[stands] += 0.15
    assert [second for second, found in lived.watch() if found] == []


def test_scrapes_of_a_cron_job_while_the_only_node_writes_are_no_compilation() -> None:
    """The host writes from second 940 on; two scrapes, each 15 s, are of a job that lasts 20 s."""

    def at(now_s: int, job: float, until_s: int = 1_035) -> list[Any]:
        def hardware(_: object, last_s: int) -> Span:
            ticks = now_s - np.arange(last_s)[::-1]
            is_job = (ticks > 1_005) & (ticks <= until_s)
            host = np.where(ticks <= 940, 0.12, np.where(is_job, 0.31 + job, 0.31))
            levels = {
                "core_utilization_ratio": np.where(ticks <= 940, 0.9, 0.02),
                "vcpu_usage_ratio": np.where(ticks <= now_s // 15 * 15, host, np.nan),
                "executions_completed_per_s": np.where(ticks <= 940, 1.0, 0.0),
            }
            values = {name: level[:, None, None] for name, level in levels.items()}
            return Span("llama/0", ticks, CHARACTERS[:1], values)

        seen = DetectionInput(
            "llama",
            CHARACTERS[:1],
            steps_at([0.1])[:0],
            hardware,
            now_s,
            hardware_at=lambda names, ages: hardware(names, 900).at([now_s - a for a in ages]),
            phase_since_s=10.0,
            report_every_s=15,
        )
        return recompile(seen)

    seconds = range(1_000, 1_090)
    # The largest job of a healthy host is as busy as a compiler: it ends sooner.
    for job in (0.16, 0.6):
        assert [second for second in seconds if at(second, job)] == []
        assert [second for second in seconds if at(second, job, until_s=1_090)]


def test_the_first_compilation_of_a_run_is_expected() -> None:
    lived = life("trn1", duration_s=160, compile_s=60)
    assert [f for second in range(10, 150) for f in recompile(lived.recording.at(second))] == []
