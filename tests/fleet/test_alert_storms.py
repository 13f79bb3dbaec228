"""One event is one alert, however long it lasts and however many nodes it affects."""

from typing import Any

import pytest

from drills.report import drill
from drills.scenario import scenario_of

pytestmark = pytest.mark.django_db

RUN = {
    "name": "big",
    "model": "llama2-7b",
    "instance": "trn1.32xlarge",
    "nodes": 4,
    "tp": 8,
    "seq_len": 4096,
    "global_batch": 64,
    "compile_s": 0,
}


def alerts(duration_s: float, *, run: dict[str, Any], **events: Any) -> list[dict[str, Any]]:
    """Play a run with one event, and return what fired."""
    table = {"name": "storm", "duration_s": duration_s, "seed": 3, "run": [RUN | run], **events}
    found: list[dict[str, Any]] = drill(scenario_of(table)).as_json()["alerts"]
    return found


@pytest.mark.parametrize("global_batch", [64, 512], ids=["short steps", "long steps"])
def test_nodes_left_over_by_a_scale_down_are_one_warning(global_batch: int) -> None:
    smaller = {"kind": "scale_change", "run": "big", "start_s": 250, "magnitude": 0.5}
    (alert,) = alerts(1_150, run={"global_batch": global_batch}, benign=[smaller])
    assert (alert["rule"], alert["node"], alert["run"]) == ("node_idle", None, "big")
    assert alert["nodes"] == ["big-02", "big-03"]
    assert alert["runs"] == ["big"]
    assert alert["resolved_s"] is None


def test_a_recompile_of_more_than_ten_minutes_stays_one_recompile() -> None:
    # Longer than the hot tier stores seconds.
    lasts_s = 960
    again = {
        "kind": "recompile",
        "run": "big",
        "start_s": 100,
        "duration_s": 30,
        "magnitude": lasts_s,
    }
    (alert,) = alerts(lasts_s + 180, run={}, fault=[again])
    assert (alert["rule"], alert["cause"]) == ("recompile", "recompile")
    assert alert["resolved_s"] > 100 + lasts_s


@pytest.mark.parametrize("where", [{"run": "big"}, {"node": "big-03"}])
def test_slow_checkpoints_one_after_another_fire_once(where: dict[str, str]) -> None:
    slow = {
        "kind": "checkpoint_slow",
        "start_s": 500,
        "duration_s": 120,
        "magnitude": 5,
        **where,
    }
    (alert,) = alerts(720, run={"checkpoint_every_s": 180}, fault=[slow])
    assert (alert["cause"], alert["node"]) == ("checkpoint_slow", where.get("node"))
