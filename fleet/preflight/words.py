"""What is said of a preflight: the verdict in sentences, and a reason for each node."""

from collections.abc import Callable, Mapping, Sequence

from fleet.models import Preflight
from fleet.preflight.found import Found
from fleet.templatetags.units import count, percent, rate, seconds
from fleet.words.wording import counted
from telemetry.preflight.collective import SLOWER_BY
from telemetry.preflight.trouble import Trouble, Verdict

METRICS: Mapping[str, str] = {
    "p50_s": "its messages take {value} in the median, usual are {usual}",
    "p99_s": "one message in a hundred takes {value} or more, usual are {usual}",
    "bandwidth_bytes_per_s": "{value} get through, usual are {usual}",
}
Writer = Callable[[Trouble], str]
MOST_EXPLAINED = 4


def _missing(parts: str) -> Writer:
    return lambda t: f"{count(t.value)} of {count(t.usual)} {parts}"


WRITERS: Mapping[str, Writer] = {
    "device_missing": _missing("accelerators"),
    "efa_missing": _missing("EFA devices"),
    "efa_down": lambda t: f"EFA device {t.device} does not answer",
    "efa_latency": lambda t: (
        f"EFA device {t.device} answers in {seconds(t.value)}, others in {seconds(t.usual)}"
    ),
    "efa_loss": lambda t: (
        f"EFA device {t.device} sends {percent(t.value, 2)} of its packets again"
    ),
    "node_silent": lambda t: "most of the others cannot reach it",
    "node_slow": lambda t: f"slow to every other node: {_compared(t)}",
    "ecc_uncorrected": lambda t: (
        f"{counted(t.value or 0, 'memory error')} that ECC cannot correct"
    ),
    "hardware_errors": lambda t: counted(t.value or 0, "hardware error"),
    "rest_moving": lambda t: f"{t.metric} moved by {count(t.value)} while nothing ran",
    "not_measured": lambda t: "no pair with it was probed",
}


def _compared(trouble: Trouble) -> str:
    write = rate if trouble.metric == "bandwidth_bytes_per_s" else seconds
    words = METRICS.get(trouble.metric, "")
    return words.format(value=write(trouble.value), usual=write(trouble.usual))


def reason(trouble: Trouble, *, of: str = "") -> str:
    """Say one trouble; of a pair, as seen from one of the two nodes."""
    if not trouble.is_of_pair:
        return WRITERS[trouble.kind](trouble)
    other = trouble.node if of == trouble.peer else trouble.peer
    if trouble.kind == "pair_silent":
        return f"it and {other} cannot reach each other, while others reach both"
    return f"slow with {other}, but not by itself: {_compared(trouble)}"


def reasons(found: Found, node: str) -> list[str]:
    """Say all that is held against a node."""
    said = [reason(each, of=node) for each in found.of(node)]
    stays = found.nodes[node] is Verdict.HOLD and node not in {t.node for t in found.own}
    return [*said, *(["so that the most can come, it stays"] if stays else [])]


def sentences(preflight: Preflight, found: Found) -> list[str]:
    """Say the verdict: how many can come, who stays and why, and how the group does."""
    failed = [node for node, verdict in found.nodes.items() if verdict is Verdict.FAIL]
    own_held = sorted({t.node for t in found.own if t.verdict is Verdict.HOLD} - set(failed))
    return [
        _how_many(preflight, found),
        *_left(found, failed),
        *([f"Look at {listed(own_held)} first."] if own_held else []),
        *(_of_pair(found, pair) for pair in found.pairs[:5]),
        *([_collective(preflight, found)] if found.slowdown is not None else []),
    ]


def _left(found: Found, failed: Sequence[str]) -> list[str]:
    """Say who must stay: of a few why, of many only who."""
    if len(failed) > MOST_EXPLAINED:
        return [f"Leave {listed(failed)}."]
    return [
        f"Leave {node}: {'; '.join(reason(t) for t in found.own if t.node == node)}."
        for node in failed
    ]


def _how_many(preflight: Preflight, found: Found) -> str:
    n, n_all, take = len(found.chosen), len(found.nodes), preflight.take
    if n == n_all:
        return "The node can be taken." if n == 1 else f"All {n} nodes can be taken."
    if take is None:
        return f"{n} of {counted(n_all, 'node')} can be taken." if n else "No node can be taken."
    if n >= take:
        return f"{n} of {counted(n_all, 'node')} can be taken, as many as are wanted."
    return f"Only {n} of the {counted(take, 'node')} wanted can be taken."


def _of_pair(found: Found, pair: Trouble) -> str:
    together = f"{pair.node} and {pair.peer}"
    silent = "cannot reach each other" if pair.kind == "pair_silent" else "are slow to each other"
    held = [node for node in (pair.node, str(pair.peer)) if found.nodes[node] is Verdict.HOLD]
    stays = f"; {held[0]} stays" if len(held) == 1 else ""
    return f"{together} {silent}, but neither is by itself: one of them may come{stays}."


def _collective(preflight: Preflight, found: Found) -> str:
    factor = f"{found.slowdown:.2f}\u202f\u00d7"
    if found.is_slow:
        return (
            f"The collective over them takes {factor} what {preflight.instance_type} should need, "
            f"more than {SLOWER_BY:g}\u202f\u00d7: look at the fabric before you start."
        )
    return f"The collective over them takes {factor} what {preflight.instance_type} should need."


def listed(names: Sequence[str], *, most: int = 8) -> str:
    """List names as a sentence does; of very many the first."""
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
