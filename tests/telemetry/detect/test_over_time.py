"""Detection of a run that begins again: other ranks, a pipeline, numbers that go on."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from telemetry.detect import Finding
from telemetry.detect.inputs import OpenProblem
from telemetry.detect.slowdowns import find_slowdowns
from telemetry.steps import StepBatch
from tests.telemetry.detect.playing import from_step, inputs_of, steps_of

AWAY_S = 120.0


def look(steps: StepBatch, watches: dict[str, Any], **about: Any) -> list[Finding]:
    """Look after each ten steps; return what is found at the end."""
    found: list[Finding] = []
    for end in range(10, len(steps) + 1, 10):
        seen = inputs_of(steps[max(0, end - 180) : end], watches)
        now_s = float(steps.ended_at_s[end - 1]) + 0.5
        found = find_slowdowns(replace(seen, now_s=now_s, **about))
    return found


def staged(n_steps: int, *, after: StepBatch | None = None) -> StepBatch:
    """Return steps of two stages, the second of which has a tenth more to do."""
    start: dict[str, Any] = {} if after is None else {
        "first": len(after), "start_s": float(after.ended_at_s[-1]) + AWAY_S
    }  # fmt: skip
    longer = from_step(0, "compute_s", 1.1, workers=[4, 5, 6, 7])
    return steps_of(n_steps, n_workers=8, change=longer, **start)


@pytest.mark.parametrize("order", [(0, 1, 2, 4, 3, 5, 6, 7), (7, 1, 2, 3, 4, 5, 6, 0)])
def test_a_restart_with_other_ranks_accuses_no_node(order: Sequence[int]) -> None:
    before, watches = staged(150), dict[str, Any]()
    assert look(before, watches, n_stages=2) == []
    after = replace(staged(250, after=before), workers=tuple(f"n{i}" for i in order))
    assert look(after, {}, n_stages=2) == []

    found = look(after, watches, n_stages=2)
    assert [(f.rule, f.cause, f.node, f.severity) for f in found] == []


@pytest.mark.parametrize("prefix", ["n", "m"])
def test_stages_are_those_of_the_present_start(prefix: str) -> None:
    before, watches = steps_of(100, n_workers=8), dict[str, Any]()
    assert look(before, watches) == []
    after = replace(staged(250, after=before), workers=tuple(f"{prefix}{i}" for i in range(8)))

    found = look(after, watches, n_stages=2)
    assert [(f.rule, f.cause, f.node, f.severity) for f in found] == []


@pytest.mark.parametrize("is_restart", [False, True])
def test_an_open_alert_says_what_was_usual_of_its_own_start(*, is_restart: bool) -> None:
    slower = from_step(0, "compute_s", 1.5)
    steps, usual_s = steps_of(100, change=slower), float(np.median(steps_of(100).step_s))
    began_s = float(steps.ended_at_s[0] - steps.step_s[0])
    said = {"baseline_step_s": usual_s, "tokens": float(steps.tokens[0]), "onset_s": began_s - 60}
    said |= {"nats": 40.0, "level_nats": 20.0}
    alert = OpenProblem("step_slow", "unknown", evidence=said)
    started_s = began_s if is_restart else None
    found = look(steps, {}, open_problems=(alert,), started_s=started_s)
    assert [f.evidence["baseline_step_s"] for f in found] == ([] if is_restart else [usual_s])


def test_a_restart_whose_numbers_go_on_begins_a_new_plan() -> None:
    """Numbers of reported steps always rise: ingest shifts those of the next start."""
    before, watches = steps_of(200), dict[str, Any]()
    assert look(before, watches) == []
    slower = from_step(0, "compute_s", 1.5)
    start_s = float(before.ended_at_s[-1]) + AWAY_S
    after = steps_of(200, change=slower, first=200, start_s=start_s)
    assert look(after, watches, started_s=start_s) == []
