"""Which cause explains the effects, and where: a posterior over the rows of causes.toml.

1. Each row and place predicts effects: one size for quantities of steps, any for hardware.
2. An effect is that prediction, its standard error, and what a signature does not know: a quarter
   of the size. What a row leaves unchanged may change by a tenth of it.
3. Sizes are unknown: the likelihood is the mean over sizes from 3 % to 300 %.
4. `unknown` predicts any effect. A row must beat it.
5. Named is the cause above 0.8, else its class; a node is accused if its rows hold 0.8.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from telemetry.blocks import FloatArray
from telemetry.detect.causes import (
    CLASS_OF,
    HARDWARE_CAUSES,
    SIGNATURES,
    UNKNOWN,
    Signature,
)
from telemetry.detect.quantities import (
    BY_EVIDENCE,
    EVERYWHERE,
    FALLS,
    OF_CORES,
    OF_DEVICES,
    OF_HARDWARE,
    OF_OTHERS,
    OF_PLACE,
    OF_STEPS,
    PARTS,
    SHOW_PART,
    SUMS,
    WIDE,
)
from telemetry.detect.shifts import Effect, Effects
from telemetry.statistics.peers import GAUSSIAN

# Sizes of a problem, as shares of the usual step: from what matters on.
SIZES = np.geomspace(0.03, 3.0, 13)
# How far a signature may be wrong, of the size, and of the usual step where it is small.
MODEL_RATIO, LEAVES_RATIO, MODEL_LEAST = 0.25, 0.1, 0.01
NAMED = 0.8
UNKNOWN_PRIOR = 0.10
# Effects at a place: size, standard error, and the part.
Deviation = tuple[float, float, int | None]
Seen = Mapping[str, Deviation]
# A cause, the row of a node and its part.
Place = tuple[str, int | None, int | None]
# Chances of unusual hardware are those of half a minute.
UNUSUAL_S = 30.0


@dataclass(frozen=True, slots=True)
class Explanation:
    """A cause or class with its place; ``weights`` is the posterior of each cause.

    ``signature`` is the likeliest row; ``node_weight`` is what the likeliest node has of the
    posterior, ``run_weight`` what the run as a whole has.
    """

    cause: str
    node: int | None
    part: int | None
    weights: Mapping[str, float]
    node_weight: float
    signature: Signature | None
    run_weight: float = 1.0

    @property
    def place(self) -> Place:
        return self.cause, self.node, self.part

    def moved(self, rows: Mapping[int | None, int | None]) -> "Explanation":
        """Return the same at the new row of its node."""
        return replace(self, node=rows[self.node])


def at_place(effects: Effects, node: int | None) -> Seen:
    """Return size, error and part of each quantity at a node; the part that stands out most.

    Without a node, quantities of places are the usual ones over the run.
    """
    found: dict[str, Deviation] = {}
    for name, effect in effects.items():
        size, error, part = effect.size, effect.error, None
        if size.ndim and node is not None:
            size, error = size[node], error[node]
            if size.ndim:
                part = _worst(name, size / error)
                size, error = size[part], error[part]
                off = by_chance(error, effect.size.size)
                size = np.sign(size) * np.maximum(np.abs(size) - off, 0.0)
        elif size.ndim:
            size, error = _usual(effect)
        if np.isfinite(size) and np.isfinite(error):
            found[name] = float(size), float(error), part
    return found


def by_chance(error: FloatArray, n: int) -> FloatArray:
    """How far the worst of ``n`` is out by chance, of this standard error."""
    return np.asarray(error * np.sqrt(2.0 * np.log(max(n, 1))))


def without(effects: Effects, other: Explanation, *, per_device: int) -> dict[str, Effect]:
    """Leave out what another problem changes: it is evidence for nothing else.

    At its place that is the device that it accuses, or the node; of the run the quantity: how much
    of a wait is whose is not known.
    """
    row = other.signature
    if row is None:
        return dict(effects)
    left: dict[str, Effect] = {}
    for name, effect in effects.items():
        sign = row.sign(name)
        if sign == 0 or (sign is None and name not in PARTS):
            left[name] = effect
        elif effect.size.ndim and other.node is not None:
            size = effect.size.copy()
            at = (other.node, parts_of(name, other, per_device))[: size.ndim]
            size[at] = np.nan
            left[name] = replace(effect, size=size)
    return left


def at_device(
    effects: Effects, node: int, quantity: str, part: int, *, per_device: int
) -> dict[str, Effect]:
    """Leave out the other devices of a node: the shift of a part is a problem of its device."""
    device = part // per_device if quantity in OF_CORES else part
    left = dict(effects)
    for name in OF_DEVICES & effects.keys() if quantity in OF_DEVICES else ():
        each = per_device if name in OF_CORES else 1
        here = slice(device * each, (device + 1) * each)
        size = effects[name].size.copy()
        size[node] = np.nan
        size[node, here] = effects[name].size[node, here]
        left[name] = replace(effects[name], size=size)
    return left


def parts_of(quantity: str, found: Explanation, per_device: int) -> slice:
    """Return the parts that a quantity has of the device that an explanation accuses, or all."""
    # One link of a node is hardly sick alone: a switch has many.
    if found.part is None or found.signature is None or quantity not in OF_DEVICES:
        return slice(None)
    is_core = found.signature.sign("core_own") == 1
    device = found.part // per_device if is_core else found.part
    each = per_device if quantity in OF_CORES else 1
    return slice(device * each, (device + 1) * each)


def _worst(quantity: str, deviations: FloatArray) -> int:
    """Return the part that deviates most to the bad side: a slow core's mates fall behind it."""
    bad = -1.0 if quantity in FALLS else 1.0
    known = np.nan_to_num(bad * deviations, nan=-np.inf)
    return int(np.argmax(known)) if known.size else 0


def _usual(effect: Effect) -> tuple[FloatArray, FloatArray]:
    known = np.isfinite(effect.size) & np.isfinite(effect.error)
    if not known.any():
        return np.asarray(np.nan), np.asarray(np.nan)
    return np.asarray(np.median(effect.size[known])), np.asarray(np.median(effect.error[known]))


def _normal(value: FloatArray | float, mean: FloatArray, deviation: FloatArray) -> FloatArray:
    """Log density; tails of Student's distribution with five degrees, for errors are estimates."""
    off = (value - mean) / deviation
    return np.asarray(-3.0 * np.log1p(off**2 / 5.0) - np.log(deviation))


def log_likelihood(
    signature: Signature | None, seen: Seen, *, lasts_s: float = UNUSUAL_S
) -> float:
    """Mean over sizes of the likelihood of effects; of `unknown` without a signature."""
    total = np.zeros(len(SIZES))
    for name, (value, error, _) in seen.items():
        sign = signature.sign(name) if signature is not None else None
        may = sign is None and _may_change(signature, name)
        is_named = signature is not None
        total += _of_quantity(name, value, error, lasts_s, sign, may, is_named)
    return _log_mean(total)


# Each quantity of a place is weighed for every row, and for most of them alike.
@lru_cache(maxsize=4096)
def _of_quantity(  # noqa: PLR0917
    name: str,
    value: float,
    error: float,
    lasts_s: float,
    sign: int | None,
    may_change: bool,  # noqa: FBT001
    is_named: bool,  # noqa: FBT001
) -> FloatArray | float:
    """Log likelihood of one effect by size, as a row says of the quantity; not to be changed."""
    healthy = _healthy(name, value, error, lasts_s)
    if sign == 0 and name in OF_STEPS:
        # Of steps what is left unchanged may change by little of what is raised.
        most = np.hypot(np.hypot(error, MODEL_LEAST), LEAVES_RATIO * SIZES)
        return np.asarray(np.logaddexp(_normal(value, 0.0 * SIZES, most), healthy) - np.log(2.0))
    if sign == 0:
        return healthy
    if sign is None:
        # It may change or not. Of hardware that proves nothing: it may have another reason.
        # A cause of which nothing is known might have changed it.
        if may_change:
            return float(np.logaddexp(_wide(value, error), healthy) - np.log(2.0))
        return healthy if is_named else float(healthy - np.log(2.0))
    if name in OF_STEPS:
        spread = np.sqrt(error**2 + (MODEL_RATIO * SIZES) ** 2 + MODEL_LEAST**2)
        return _normal(value, sign * SIZES, spread)
    # Hardware has a size of its own: the mean over all.
    each = _normal(value, sign * SIZES, np.sqrt(error**2 + (MODEL_RATIO * SIZES) ** 2))
    return _log_mean(each)


def _log_mean(logarithms: FloatArray) -> float:
    top = float(logarithms.max())
    return top + float(np.log(np.mean(np.exp(logarithms - top))))


def explain(
    effects: Effects,
    nodes: Iterable[int],
    *,
    n_nodes: int,
    n_stages: int = 2,
    lasts_s: float = UNUSUAL_S,
) -> Explanation:
    """Weigh every cause at every candidate node and for the run as a whole.

    Notes
    -----
    ``P(cause, place | effects)``, which is proportional to prior times likelihood. Steps are sums
    of their phases and own time is that of its phases, so sums are left out: they would be counted
    twice. What a place shows is compared with what it would show without a problem.
    """
    usual = dict(at_place(effects, None))
    of_run = {name: seen for name, seen in usual.items() if name not in OF_PLACE | SUMS}
    everywhere = {name: usual[of] for name, of in EVERYWHERE.items() if of in usual}
    of_run = {name: seen for name, seen in of_run.items() if name not in EVERYWHERE.values()}
    # The only node of a run has no others that wait: what it does is what the run does.
    of_others = {n: seen for n, seen in of_run.items() if n_nodes > 1 or n not in OF_OTHERS}
    of_only = {f"own_{name}": of_run[name] for name in ("compute", "input") if name in of_run}
    places: list[tuple[int | None, dict[str, Deviation]]] = [(None, everywhere)]
    for accused in nodes:
        of_node = at_place(effects, accused)
        places.append(
            (
                accused,
                {name: seen for name, seen in of_node.items() if name in OF_PLACE}
                | (of_only if n_nodes == 1 else {}),
            )
        )
    weights: list[tuple[float, Signature | None, int | None, int | None]] = []
    for node, here in places:
        scope, share = ("run", 1) if node is None else ("node", n_nodes)
        # Without a pipeline no stage is longer.
        able = (row for row in SIGNATURES if n_stages > 1 or "stage" not in row.raises)
        rows = (row for row in able if row.scope == scope)
        if "transfer" not in of_run:
            rows = (_exchanging_within(row) for row in rows)
        null = sum(_healthy(name, *effect[:2], lasts_s) for name, effect in here.items())
        for row in (*rows, None):
            prior = UNKNOWN_PRIOR if row is None else row.prior
            beside = of_run if node is None else of_others
            weight = (
                np.log(prior / share) + log_likelihood(row, beside | here, lasts_s=lasts_s) - null
            )
            weight += sum(
                _scatter(effects[name]) for name in effects if row and name in row.scatters
            )
            weights.append((float(weight), row, node, _part_of(row, here) if row else None))
    return _as_far_as_measured(
        _named(weights), {node: of_run.keys() | here.keys() for node, here in places}
    )


def _as_far_as_measured(
    found: Explanation, measured: Mapping[int | None, Collection[str]]
) -> Explanation:
    """Name no more than was measured: the class where no part tells its causes apart."""
    row = found.signature
    if row is None:
        return found
    if (row.raises | row.lowers).isdisjoint(measured[found.node]):
        # Nothing of what it changes was measured: priors alone name nothing.
        return replace(found, cause=UNKNOWN, part=None)
    if row.name != found.cause:
        return found
    shown_by = (row.raises | row.lowers) & PARTS
    if not shown_by or not shown_by.isdisjoint(measured[found.node]):
        return found
    group = CLASS_OF.get(found.cause, found.cause)
    # Steps show who computes longer, but not whose link is slow.
    node = found.node if group in HARDWARE_CAUSES else None
    return replace(found, cause=group, node=node, part=None)


def _exchanging_within(row: Signature) -> Signature:
    """Let a row that lengthens exchanges lengthen the work, where that contains all of them."""
    if "transfer" not in row.raises:
        return row
    raises, leaves = row.raises - {"transfer"} | {"compute"}, row.leaves - {"compute"}
    return replace(row, raises=raises, leaves=leaves)


def _may_change(signature: Signature | None, name: str) -> bool:
    """Whether a row of which a quantity is not said leaves it open; of hardware it says so."""
    is_hardware = name in OF_HARDWARE
    return not is_hardware or (signature is not None and name in signature.may)


@lru_cache(maxsize=4096)
def _healthy(name: str, value: float, error: float, lasts_s: float) -> float:
    """Log likelihood of what a place without a problem shows: nothing, or something unusual."""
    usual = float(_normal(value, np.zeros(()), np.hypot(error, MODEL_LEAST)))
    if name not in OF_HARDWARE:
        return usual
    of = BY_EVIDENCE[name]
    n_times = max(1.0, lasts_s / UNUSUAL_S)
    # Levels are medians: what is unusual must last. Loss is counted: once is enough.
    chance = np.log(of.chance)
    log_chance = chance + np.log(n_times) if of.of else chance * n_times
    return float(np.logaddexp(usual, log_chance + _wide(value, error, of.far)))


def _wide(value: float, error: float, far: float = WIDE) -> float:
    return float(_normal(value, np.zeros(()), np.hypot(error, far)))


def _scatter(effect: Effect) -> float:
    """Log likelihood ratio of nodes that are all unlike against nodes that are as before.

    The deviation of all together is estimated, which costs half the logarithm of their number.
    What is as before scatters as before: what it scatters by now would hide that all are unlike.
    """
    before = effect.error if effect.usual_error is None else effect.usual_error
    known = np.isfinite(effect.size) & np.isfinite(before)
    size, error = effect.size[known], np.hypot(before[known], MODEL_LEAST)
    if len(size) < 2:
        return 0.0
    usual = float(np.median(np.abs(size))) * GAUSSIAN
    zero = np.zeros(len(size))
    unlike = _normal(size, zero, np.hypot(error, usual)).sum()
    return float(unlike - _normal(size, zero, error).sum() - 0.5 * np.log(len(size)))


def _part_of(row: Signature, here: Seen) -> int | None:
    """Return the part that the row's own hardware quantities show, by the one that is clearest."""
    shown = [
        (abs(size) / error, part)
        for name, (size, error, part) in here.items()
        if name in SHOW_PART and row.sign(name) not in (None, 0)
    ]
    return max(shown, key=lambda each: each[0], default=(0.0, None))[1]


def _named(
    weights: list[tuple[float, Signature | None, int | None, int | None]],
) -> Explanation:
    logs = np.array([weight for weight, *_ in weights])
    posterior = np.exp(logs - logs.max())
    posterior /= posterior.sum()
    by_cause: dict[str, float] = {}
    by_class: dict[str, float] = {}
    by_node: dict[int | None, float] = {}
    for share, (_, row, node, _part) in zip(posterior.tolist(), weights, strict=True):
        name = row.name if row is not None else UNKNOWN
        by_cause[name] = by_cause.get(name, 0.0) + share
        group = CLASS_OF.get(name, name)
        by_class[group] = by_class.get(group, 0.0) + share
        by_node[node] = by_node.get(node, 0.0) + share
    cause, share = max(by_cause.items(), key=lambda item: item[1])
    group, of_group = max(by_class.items(), key=lambda item: item[1])
    name = cause if share >= NAMED else group if of_group >= NAMED else UNKNOWN
    node, node_share = max(by_node.items(), key=lambda item: item[1])
    node = node if node_share >= NAMED else None
    best = max(
        (
            (share, row, part)
            for share, (_, row, at, part) in zip(posterior.tolist(), weights, strict=True)
            if at == node
        ),
        key=lambda item: item[0],
    )
    part = best[2] if name == cause and node is not None else None
    return Explanation(name, node, part, by_cause, node_share, best[1], by_node.get(None, 0.0))
