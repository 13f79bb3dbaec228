"""The text of a preflight: its verdict, its findings, and the limits it judges by."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fleet.formatting import count, counted, percent, rate, seconds
from fleet.models import Preflight
from telemetry.checks.preflight import DEVIATIONS, DEVICE_SLOWER_BY, LOSS_RATIO, PreflightResult
from telemetry.checks.preflight_measurements import REST_COUNTERS, SLOWER_BY
from telemetry.checks.preflight_pairs import (
    FIGURES,
    NODE_DEVIATIONS,
    PAIR_DEVIATIONS,
    NodeVerdict,
    PreflightFinding,
)

METRICS: Mapping[str, str] = {
    "p50_s": "median latency {value}, usually {usual}",
    "p99_s": "99th percentile of latency {value}, usually {usual}",
    "bandwidth_bytes_per_s": "bandwidth {value}, usually {usual}",
}
Writer = Callable[[PreflightFinding], str]
MOST_EXPLAINED = 4


def _missing(parts: str) -> Writer:
    return lambda t: f"{count(t.value)} of {count(t.usual)} {parts}"


WRITERS: Mapping[str, Writer] = {
    "device_missing": _missing("accelerators"),
    "efa_missing": _missing("EFA devices"),
    "efa_down": lambda t: f"EFA device {t.device} does not respond",
    "efa_latency": lambda t: (
        f"EFA device {t.device} responds in {seconds(t.value)}, others in {seconds(t.usual)}"
    ),
    "efa_loss": lambda t: (
        f"EFA device {t.device} retransmits {percent(t.value, 2)} of its packets"
    ),
    "node_silent": lambda t: "most other nodes cannot reach it",
    "node_slow": lambda t: f"slow to every other node: {_compared(t)}",
    "ecc_uncorrected": lambda t: f"{counted(t.value or 0, 'uncorrected memory error')}",
    "hardware_errors": lambda t: counted(t.value or 0, "hardware error"),
    "rest_moving": lambda t: f"{t.metric} increased by {count(t.value)} without load",
    "not_measured": lambda t: "none of its pairs was probed",
}


def _compared(trouble: PreflightFinding) -> str:
    write = rate if trouble.metric == "bandwidth_bytes_per_s" else seconds
    words = METRICS.get(trouble.metric, "")
    return words.format(value=write(trouble.value), usual=write(trouble.usual))


def reason(trouble: PreflightFinding, *, of: str = "") -> str:
    """Describe a finding; one about a pair is described from the side of node ``of``."""
    if not trouble.is_of_pair:
        return WRITERS[trouble.kind](trouble)
    other = trouble.node if of == trouble.peer else trouble.peer
    if trouble.kind == "pair_silent":
        return f"it and {other} cannot reach each other, but others reach both"
    return f"slow with {other} only: {_compared(trouble)}"


def reasons(found: PreflightResult, node: str) -> list[str]:
    sentences = [reason(each, of=node) for each in found.findings_of(node)]
    stays = found.nodes[node] is NodeVerdict.HOLD and node not in {t.node for t in found.own}
    return [*sentences, *(["excluded, so that the most nodes can be used"] if stays else [])]


def sentences(preflight: Preflight, found: PreflightResult) -> list[str]:
    """Write the verdict: how many nodes can be used, which cannot and why, and the collective."""
    n, n_all, take = len(found.chosen), len(found.nodes), preflight.take
    if n == n_all:
        texts = ["The node can be used." if n == 1 else f"All {n} nodes can be used."]
    elif take is None:
        some = f"{n} of {counted(n_all, 'node')} can be used."
        texts = [some if n else "No node can be used."]
    elif n >= take:
        texts = [f"{n} of {counted(n_all, 'node')} can be used, {take} are needed."]
    else:
        texts = [f"Only {n} of the {counted(take, 'node')} needed can be used."]
    failed = [node for node, verdict in found.nodes.items() if verdict is NodeVerdict.FAIL]
    if len(failed) > MOST_EXPLAINED:
        texts.append(f"Exclude {listed(failed)}.")
    else:
        texts += [
            f"Exclude {node}: {'; '.join(reason(t) for t in found.own if t.node == node)}."
            for node in failed
        ]
    own_held = sorted({t.node for t in found.own if t.verdict is NodeVerdict.HOLD} - set(failed))
    if own_held:
        texts.append(f"Inspect {listed(own_held)} first.")
    for pair in found.pairs[:5]:
        is_silent = pair.kind == "pair_silent"
        silent = "cannot reach each other" if is_silent else "are slow to each other"
        nodes = (pair.node, str(pair.peer))
        held = [node for node in nodes if found.nodes[node] is NodeVerdict.HOLD]
        excluded = f"; exclude {held[0]}" if len(held) == 1 else ""
        texts.append(
            f"{' and '.join(nodes)} {silent}, but not to others: use only one of the "
            f"pair{excluded}."
        )
    if found.slowdown is not None:
        above = (
            f", above the limit of {SLOWER_BY:g}\u202f\u00d7: check the fabric before you start"
        )
        texts.append(
            f"Their collective takes {found.slowdown:.2f}\u202f\u00d7 the expected time of "
            f"{preflight.instance_type}{above if found.is_slow else ''}."
        )
    return texts


def classes_text(found: PreflightResult) -> str:
    racks = found.racks
    if racks is None:
        return "All pairs are compared as one class: no racks are known or visible in the figures."
    if racks.basis == "labels":
        source = "as labelled"
    else:
        source = "inferred: pairs are fast within a group and slower across groups"
    sizes = listed([str(len(rack)) for rack in racks.racks])
    return (
        "Pairs of one rack and pairs across racks are compared separately; across, the median "
        f"latency is {racks.ratio:.2f}\u202f\u00d7. {counted(len(racks.racks), 'rack')} of "
        f"{sizes} nodes, {source}."
    )


def listed(names: Sequence[str], *, most: int = 8) -> str:
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


NAMES = {
    "p50_s": "median",
    "p99_s": "99th percentile",
    "bandwidth_bytes_per_s": "bandwidth",
}


@dataclass(frozen=True, slots=True)
class Limit:
    what: str
    wrong: str
    verdict: str
    because: str


# Factors over usual, by metric.
OF_NODES = ", ".join(f"{NAMES[each.name]} {each.node:g} \u00d7" for each in FIGURES)
OF_PAIRS = ", ".join(f"{NAMES[each.name]} {each.pair:g} \u00d7" for each in FIGURES)
# Every check with its limit in the code.
LIMITS: Sequence[Limit] = (
    Limit(
        "accelerators, EFA devices",
        "fewer than its type has",
        "fail",
        "the layout of the run would not fit",
    ),
    Limit("uncorrected memory errors, hardware errors", "any", "fail", "they recur"),
    Limit(
        "counters at rest",
        f"any of {', '.join(REST_COUNTERS)} increases",
        "hold",
        "nothing should move without load",
    ),
    Limit(
        "one EFA device",
        f"no response; {DEVICE_SLOWER_BY:g} \u00d7 its peers and {DEVIATIONS:g} deviations; "
        f"{percent(LOSS_RATIO, 2)} retransmit ratio",
        "fail",
        "similar devices differ by 2 to 4 %; a busy fabric responds 10 % later",
    ),
    Limit(
        "a node to all others",
        f"{OF_NODES} worse than usual, and {NODE_DEVIATIONS:g} deviations",
        "fail",
        "the tail varies more than the median, bandwidth less",
    ),
    Limit(
        "a pair",
        f"{OF_PAIRS} worse than its class (one rack, across racks) and its two nodes explain, "
        f"and {PAIR_DEVIATIONS:g} deviations",
        "hold",
        "pairs across racks are slower without a fault",
    ),
    Limit(
        "the group",
        f"the collective of the chosen nodes takes more than {SLOWER_BY:g} \u00d7 the expected",
        "hold",
        "the expected curve fits published runs within 15 %",
    ),
)
