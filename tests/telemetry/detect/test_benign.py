"""Benign events that look like faults do not page."""

from typing import Any

import pytest

from telemetry.simulate.plan import Benign
from tests.telemetry.detect.played import record


def event(kind: str, **more: Any) -> Benign:
    return Benign(kind=kind, run="run", start_s=120, **more)


@pytest.mark.parametrize("run", ["trn1", "trn2", "p5", "staged"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_long_healthy_run_has_no_finding(run: str, seed: int) -> None:
    recording = record(run, duration_s=1_200, seed=seed)
    assert [f for _, found in recording.watch(range(20, 1_200, 4)) for f in found] == []


@pytest.mark.parametrize("run", ["trn1", "trn2", "p5", "staged"])
@pytest.mark.parametrize(
    "look_alike",
    [
        event("checkpoint"),
        event("evaluation"),
        event("planned_compile"),
        event("batch_change", magnitude=2.0),
        event("scale_change", magnitude=0.5, duration_s=120),
        event("node_joins", node="run-03"),
        event("node_leaves", node="run-03", duration_s=120),
    ],
    ids=lambda benign: benign.kind,
)
def test_a_look_alike_has_no_finding(run: str, look_alike: Benign) -> None:
    recording = record(run, duration_s=500, benign=[look_alike])
    assert [f for _, found in recording.watch(range(20, 500, 3)) for f in found] == []


@pytest.mark.parametrize("until_s", [260, 620])
def test_a_smaller_batch_raises_the_share_without_an_alert(until_s: int) -> None:
    smaller = event("batch_change", magnitude=0.4, duration_s=500)
    recording = record("trn1", duration_s=until_s, benign=[smaller])
    assert recording.breaks_at_s < until_s - 50
    found = [f for _, each in recording.watch(range(until_s - 140, until_s)) for f in each]
    assert found == []


@pytest.mark.parametrize("global_batch", [32, 64])
def test_a_run_that_begins_above_its_limit_is_a_warning(global_batch: int) -> None:
    recording = record("trn1", duration_s=150, global_batch=global_batch)
    found = [f for _, each in recording.watch(range(20, 150)) for f in each]
    assert {(f.cause, f.node, f.severity) for f in found} == {("unknown", None, "warn")}
    assert {f.evidence["kind"] for f in found} == {"communication-bound layout"}
