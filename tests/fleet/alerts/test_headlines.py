"""Nodes and runs in headlines: state, location, since when."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils.html import strip_tags

from fleet.formatting import written
from fleet.models import Node, Run
from fleet.pages.text import node_headline, run_headline
from fleet.runs.summaries import NodeNow, RunNow
from tests.helpers import NOON, NOON_S

AT = NOON + timedelta(hours=1)


def node(now: NodeNow, n_alerts: int = 0) -> str:
    return strip_tags(node_headline(now, n_alerts=n_alerts, at=AT)).replace("\u202f", " ")


def run_text(now: RunNow) -> str:
    return strip_tags(run_headline(now, at=AT)).replace("\u202f", " ")


def test_a_node_that_works(steady: Node) -> None:
    now = NodeNow(steady, last_seen_s=NOON_S + 3600, is_up=True, utilization_mean=0.694)

    assert node(now) == (
        "steady is reporting. Rank 0 of llama, which is training. No open alerts."
    )


def test_a_node_that_is_silent(silent: Node) -> None:
    now = NodeNow(silent, last_seen_s=NOON_S + 3559)

    since = written(NOON + timedelta(seconds=3559))
    assert f"silent has been silent for 41 s, since {since}." in node(now)


def test_a_silent_node_is_not_shown_as_healthy(silent: Node) -> None:
    assert "Nothing is wrong" not in node(NodeNow(silent, last_seen_s=NOON_S))


def test_a_node_that_is_idle(steady: Node) -> None:
    now = NodeNow(steady, last_seen_s=NOON_S + 3600, is_up=True)

    assert "no process uses its cores" in node(now)


def test_a_node_of_no_run(steady: Node) -> None:
    steady.run = None

    assert "Not assigned to a run" in node(NodeNow(steady))


def test_a_node_with_alerts(steady: Node) -> None:
    now = NodeNow(steady, last_seen_s=NOON_S + 3600, is_up=True, utilization_mean=0.5)

    assert node(now, n_alerts=2).endswith("2 open alerts.")


def trains(run: Run, *, share_ratio: float = 0.135, is_stale: bool = False) -> RunNow:
    return RunNow(
        run,
        step_s=6.31,
        share_ratio=share_ratio,
        wait_ratio=0.05,
        transfer_ratio=share_ratio - 0.05,
        tokens_per_s=6.65e5,
        mfu_ratio=0.27,
        usd_per_mtok=0.36,
        last_step_at_s=NOON_S + 3500,
        is_stale=is_stale,
    )


def test_a_run_that_trains_is_described_alike_on_both_sides_of_its_limit(run: Run) -> None:
    text = f"llama is training. Started {written(NOON, 'day')}."
    assert [run_text(trains(run, share_ratio=share)) for share in (0.135, 0.314)] == [text] * 2


def test_a_run_that_has_stopped(run: Run) -> None:
    assert "has completed no step for 1 min; the last took 6.31 s" in run_text(
        trains(run, is_stale=True)
    )


def test_a_run_that_hangs_is_not_said_to_train(run: Run, steady: Node) -> None:
    """Its steps are forgotten after some minutes; its alert is not."""
    since = NOON + timedelta(seconds=3500)
    for now in (trains(run, is_stale=True), RunNow(run)):
        hangs = replace(now, standstill="hangs", stands_since=since)
        assert hangs.state == "hangs"
        assert f"llama hangs: no step for 1 min, since {written(since)}" in run_text(hangs)
        text = node_headline(NodeNow(steady), n_alerts=0, at=AT, of_run=hangs)
        assert f"which hangs since {written(since)}." in strip_tags(text)


def test_a_node_names_since_when_its_run_has_no_step(run: Run, steady: Node) -> None:
    stale = trains(run, is_stale=True)
    text = strip_tags(node_headline(NodeNow(steady), n_alerts=0, at=AT, of_run=stale))
    assert f"which has completed no step since {written(NOON + timedelta(seconds=3500))}." in text


def test_a_run_without_steps(run: Run) -> None:
    assert "no steps have been reported" in run_text(RunNow(run))


@pytest.mark.parametrize("phase", ["pending", "finished", "failed"])
def test_a_run_that_does_not_train(run: Run, phase: str) -> None:
    run.phase = phase

    assert run_text(RunNow(run)).startswith("llama ")


@pytest.mark.parametrize(
    ("phase", "done", "left_s"),
    [
        ("compiling", 0.75, 1200),
        ("warming_up", 0.5, 3600),
        ("compiling", 0.0, None),
        ("training", 0.5, None),
    ],
)
def test_the_rest_takes_as_long_as_the_pace_so_far_states(
    run: Run, phase: str, done: float, left_s: float | None
) -> None:
    run.phase, run.phase_progress_ratio = phase, done

    assert run.remaining_s(AT) == left_s


def test_a_run_that_compiles_states_what_is_left(run: Run) -> None:
    run.phase, run.phase_progress_ratio = Run.Phase.COMPILING, 0.75

    assert "is compiling: 75 % done after 1 h, about 20 min left" in run_text(RunNow(run))
