"""`python -m bench.drill_worker`: play scenarios named on stdin; one JSON line each on stdout."""

import os
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any

import django
import msgspec

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "fleet.settings")
django.setup()

from bench.healthy_runs import (  # noqa: E402
    healthy_hooks_scenario,
    healthy_scenario,
    matrix_scenario,
)
from bench.random_scenarios import (  # noqa: E402
    NODE_CV,
    lasting_fault_scenario,
    random_scenario,
    single_fault_scenario,
)
from bench.scenario_grid import grid_scenarios  # noqa: E402
from drills.report import DrillReport, drill, is_kept, misleads  # noqa: E402
from drills.scenario import Scenario  # noqa: E402
from fleet.simulation.scoring import (  # noqa: E402
    accuses_wrongly,
    is_cause_right,
    is_in_time,
    is_place_right,
    time_limit_s,
)
from telemetry.simulate.inputs import tier_named  # noqa: E402
from telemetry.simulate.plan import Noise  # noqa: E402


def main(timeout_s: float) -> None:
    """Play until stdin ends or the time is over."""
    began_s = time.perf_counter()
    for line in sys.stdin:
        if time.perf_counter() - began_s > timeout_s:
            break
        scenario, before_s = scenario_named(line.strip()), time.perf_counter()
        try:
            outcome = outcome_of(drill(scenario))
        except Exception:
            # One scenario that breaks detection must not hide what the others say.
            outcome = {"scenario": scenario.name, "error": traceback.format_exc(limit=-2)}
        outcome["took_s"] = time.perf_counter() - before_s
        sys.stdout.write(msgspec.json.encode(outcome).decode() + "\n")
        sys.stdout.flush()


def scenario_named(name: str) -> Scenario:
    """Return a scenario of the set, or one that a seed draws, at an input tier.

    ``chance-1007``, ``calm-3``, ``single-1007@agent_hooks``; with ``+busy`` at the end a core
    that waits counts as busy, with ``+probe`` agents answer requested probes, with ``+trace``
    workers trace on request, with ``+ideal`` nothing happens but faults and look-alikes. Steps
    hardly vary with ``+steady``, and vary as in a file with ``+recorded=FILE``, which comes last;
    ``+environment=1.5`` multiplies rates and sizes of harmless events.
    """
    place, _, tier = name.partition("@")
    kind, _, seed = place.partition("-")
    drawn = {
        "chance": random_scenario,
        "single": single_fault_scenario,
        "lasting": lasting_fault_scenario,
        "calm": healthy_scenario,
        "hooks": healthy_hooks_scenario,
        "matrix": matrix_scenario,
    }
    scenario = drawn[kind](int(seed)) if kind in drawn else grid_scenarios()[place]
    if not tier:
        return scenario
    tier, _, recorded = tier.partition("+recorded=")
    tier, *apart = tier.split("+")
    inputs = tier_named(
        tier,
        busy_while_waiting="busy" in apart,
        probe_on_request="probe" in apart,
        trace_on_request="trace" in apart,
    )
    noise = varied(scenario.noise, apart, recorded)
    return msgspec.structs.replace(scenario, name=name, inputs=inputs, noise=noise)


def varied(noise: Noise, apart: Sequence[str], recorded: str) -> Noise:
    """Return a scenario's noise as the end of its name has it."""
    changed: dict[str, Any] = {}
    if "ideal" in apart:
        changed["background"] = False
    if "steady" in apart:
        changed |= {"measured": False, "node_cv": NODE_CV}
    if recorded:
        # It has no other scatter.
        changed |= {"recorded": recorded, "step_cv": 0.0, "tail": "normal"}
    for each in apart:
        if each.startswith("environment="):
            changed["environment"] = float(each.partition("=")[2])
    return msgspec.structs.replace(noise, **changed)


def outcome_of(report: DrillReport) -> dict[str, Any]:
    """Return what became of every fault and every alert of a play."""
    return {
        "scenario": report.scenario.name,
        "duration_s": report.scenario.duration_s,
        "tier": report.scenario.inputs.tier,
        "is_busy": report.scenario.inputs.busy_while_waiting,
        "nodes": report.scenario.runs[0].nodes,
        "faults": [_fault(report, i) for i in range(len(report.truths))],
        "alerts": [_alert(report, j) for j in range(len(report.firings))],
    }


def _fault(report: DrillReport, i: int) -> dict[str, Any]:
    truth = report.truths[i]
    firing = report.firings[report.matches.noticed[i]] if i in report.matches.noticed else None
    outcome: dict[str, Any] = {
        "kind": truth.fault.kind,
        "node": truth.fault.node,
        "device": truth.fault.device,
        "magnitude": truth.fault.magnitude,
        "start_s": truth.start_s,
        "end_s": truth.end_s,
        "ratio": truth.step_slowdown_ratio,
        "step_s": truth.step_s,
        "limit_s": time_limit_s(truth),
        "counts": truth.counts,
        # One node is hit: detection is to name it.
        "is_single": len(truth.nodes) == 1,
        "delay_s": None,
    }
    if firing is not None:
        outcome |= {
            "delay_s": firing.fired_s - truth.start_s,
            "is_placed": is_place_right(truth, firing),
            "is_named": is_cause_right(truth, firing),
            "is_in_time": is_in_time(truth, firing),
            "is_kept": is_kept(truth, firing),
            "alert": f"{firing.rule}/{firing.cause} {firing.node}/{firing.device}",
        }
    return outcome


def _alert(report: DrillReport, j: int) -> dict[str, Any]:
    firing, matches = report.firings[j], report.matches
    became = "false" if j in matches.false else "again" if j in matches.repeats else "notice"
    truth = next((report.truths[i] for i, at in matches.noticed.items() if at == j), None)
    return {
        "rule": firing.rule,
        "cause": firing.cause,
        "node": firing.node,
        "device": firing.device,
        "fired_s": firing.fired_s,
        "located_s": firing.located_s,
        "resolved_s": firing.resolved_s,
        "is_wrong_node": accuses_wrongly(firing, report.truths),
        "misleads": truth is not None and misleads(truth, firing, report.truths),
        "is_page": firing.severity == "1-page",
        "became": became,
    }


if __name__ == "__main__":
    main(float(sys.argv[1]))
