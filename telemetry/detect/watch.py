"""All rules over the vitals of one run: what is broken now."""

from collections.abc import Callable, Collection, Mapping

from telemetry.detect.finding import Finding
from telemetry.detect.parts.ecc import uncorrected
from telemetry.detect.parts.errors import exec_errors
from telemetry.detect.parts.idle import node_idle
from telemetry.detect.performance import performance
from telemetry.detect.standstill.hang import hang
from telemetry.detect.standstill.recompile import recompile
from telemetry.detect.vitals import Vitals


def memory_errors(vitals: Vitals) -> list[Finding]:
    """Apply the rule ecc_uncorrected where somebody looked at the counts."""
    return [] if vitals.counts is None else uncorrected(vitals.counts, run=vitals.run)


# Rules that stand by themselves, each a function of the vitals: one line for a new one.
BY_ITSELF: Mapping[str, Callable[[Vitals], list[Finding]]] = {
    "hang": hang,
    "recompile": recompile,
    "exec_errors": exec_errors,
    "node_idle": node_idle,
    "ecc_uncorrected": memory_errors,
}


def find(vitals: Vitals, *, open_rules: Collection[str] = ()) -> list[Finding]:
    """Return every rule that the run breaks now.

    ``open_rules`` names the rules whose alert on this run is open: it decides only where the
    window itself holds neither a breaking nor a mending. A run without steps breaks no rule
    that is judged by steps, and mends none either: leave its alerts as they are.
    """
    found = performance(vitals, open_rules=open_rules)
    for look in BY_ITSELF.values():
        found += look(vitals)
    return found
