"""Apply all rules to one run."""

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from telemetry.detect.findings import Finding
from telemetry.detect.inputs import DetectionInput
from telemetry.detect.node_errors import (
    exec_errors,
    lost_devices,
    memory_errors,
    node_idle,
    rejected_devices,
)
from telemetry.detect.recompile import recompile
from telemetry.detect.rules import RULES, names_of
from telemetry.detect.slowdowns import find_slowdowns
from telemetry.detect.stopped import hang, missing_workers
from telemetry.detect.training_loss import loss_not_finite, loss_spike

Finder = Callable[[DetectionInput], list[Finding]]
# Rules that do not depend on others. Add a new one here.
INDEPENDENT_RULES: Mapping[str, Finder] = {
    "hang": hang,
    "workers_missing": missing_workers,
    "recompile": recompile,
    "exec_errors": exec_errors,
    "node_idle": node_idle,
    "ecc_uncorrected": memory_errors,
    "device_unhealthy": rejected_devices,
    "device_missing": lost_devices,
    "loss_not_finite": loss_not_finite,
    "loss_spike": loss_spike,
}


# Evaluated together by `find_slowdowns`.
SLOWDOWNS = names_of(lambda rule: rule.slows_steps and rule.reads == "measurements")


def find(
    inputs: DetectionInput,
    *,
    open_rules: Collection[str] = (),
    rules: Mapping[str, Finder] = INDEPENDENT_RULES,
    guard: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> list[Finding]:
    """All rules that the run breaks now.

    ``open_rules``: the rules with an open alert on this run. It matters only where the window
    contains neither a start nor an end of a problem. Without steps no step rule fires or resolves:
    leave such alerts unchanged. ``rules`` are the independent ones. Each rule runs in
    ``guard(name)``, which may suppress its exceptions; the others are evaluated all the same.
    """
    found = list[Finding]()
    slow: Finder = partial(find_slowdowns, open_rules=open_rules)
    for name, rule in {"step_slow": slow, **rules}.items():
        with guard(name):
            found += (each for each in rule(inputs) if _exceeds_own_limit(inputs, each))
    return found


def _exceeds_own_limit(inputs: DetectionInput, finding: Finding) -> bool:
    """Whether a finding is above the limit that its run has of its own, if it has one.

    Such a limit is not below that of the rule. A finding without the figure stays.
    """
    name, over, under = RULES[finding.rule].own_limit or ("", "", None)
    limit = inputs.own_limits.get(f"{finding.rule}.{name}")
    figure = finding.evidence.get(over)
    usual = finding.evidence.get(under) if under else 1.0
    if limit is None or figure is None or not usual:
        return True
    if finding.rule != "step_slow":
        return bool(figure / usual >= limit)
    is_open = any(each.rule == finding.rule for each in inputs.open_problems)
    half = RULES[finding.rule].limits["half_ratio"] if is_open else 1.0
    return bool(figure / usual - 1.0 >= limit * half)
