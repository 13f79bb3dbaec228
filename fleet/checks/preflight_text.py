"""The text of a preflight: its verdict, its findings, and the limits it judges by."""

from collections.abc import Callable, Mapping, Sequence

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


def listed(names: Sequence[str], *, most: int = 8) -> str:
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


# The limits in the code, for the table of criteria.
LIMITS: Mapping[str, object] = {
    "figures": FIGURES,
    "rest_counters": REST_COUNTERS,
    "device_slower_by": DEVICE_SLOWER_BY,
    "device_deviations": DEVIATIONS,
    "loss_ratio": LOSS_RATIO,
    "node_deviations": NODE_DEVIATIONS,
    "pair_deviations": PAIR_DEVIATIONS,
    "slower_by": SLOWER_BY,
}
