"""What is wrong with the nodes that a simulated preflight probes: drills, and what was put in."""

import re
from collections.abc import Iterable, Sequence

import msgspec
from django.db.models import Q

from fleet.models import InjectedFault, Preflight
from telemetry.catalog import Instance
from telemetry.simulate.bed import EFA_KINDS, PAIR_KINDS, PROBE_KINDS, ProbeFault

WRITTEN = re.compile(
    r"(?P<kind>\w+):(?P<node>[A-Za-z0-9._-]+?)(?:/(?P<device>\d{1,4}))?"
    r"(?:\+(?P<peer>[A-Za-z0-9._-]+?))?(?:=(?P<magnitude>\d{1,6}(?:\.\d{1,6})?))?"
)
SHAPE = "KIND:NODE, KIND:NODE/DEVICE or KIND:NODE+PEER, with =STRENGTH behind it if you like"
LEAST = {"efa_latency": 1.0, "pair_slow": 1.0}
MOST = {"efa_loss": 0.5, "efa_latency": 100.0, "pair_slow": 100.0}
ANYTHING = 1_000.0


class FaultError(ValueError):
    """A fault that cannot be put in: says why, and what can."""


def parsed(words: Iterable[str], nodes: Sequence[str], instance: Instance) -> list[ProbeFault]:
    """Read faults as people write them, such as ``efa_latency:n-03/5=3``.

    Raises
    ------
    FaultError
        Naming the first that cannot be.
    """
    return [_parsed(word, nodes, instance) for word in words]


def _parsed(word: str, nodes: Sequence[str], instance: Instance) -> ProbeFault:
    match = WRITTEN.fullmatch(word)
    if match is None:
        raise FaultError(f"{word[:60]!r} is no fault; write {SHAPE}")
    kind, device, given = match["kind"], match["device"], match["magnitude"]
    if kind not in PROBE_KINDS:
        raise FaultError(f"{kind!r} is no kind; choose one of {', '.join(PROBE_KINDS)}")
    for node in filter(None, (match["node"], match["peer"])):
        if node not in nodes:
            raise FaultError(f"{node!r} is none of the nodes asked for")
    if (kind in PAIR_KINDS) != (match["peer"] is not None) or match["peer"] == match["node"]:
        raise FaultError(
            f"{word!r}: {', '.join(PAIR_KINDS)} take two nodes, NODE+PEER; others one"
        )
    if kind in EFA_KINDS and (device is None or int(device) >= instance.n_efa):
        raise FaultError(
            f"{word!r}: name one of the {instance.n_efa} EFA devices of {instance.name}, NODE/0 on"
        )
    magnitude = PROBE_KINDS[kind] if given is None else float(given)
    if not LEAST.get(kind, 0) <= magnitude <= MOST.get(kind, ANYTHING):
        low, high = LEAST.get(kind, 0), MOST.get(kind, ANYTHING)
        raise FaultError(f"{word!r}: the strength of {kind} goes from {low:g} to {high:g}")
    return ProbeFault(
        kind=kind,
        node=match["node"],
        peer=match["peer"],
        device=None if device is None or kind not in EFA_KINDS else int(device),
        magnitude=magnitude,
    )


def faults_of(preflight: Preflight) -> tuple[ProbeFault, ...]:
    """Return all that is wrong with its nodes: put in on purpose, or a drill as it was asked."""
    put_in = [msgspec.convert(each, ProbeFault) for each in preflight.faults]
    drilled = InjectedFault.objects.filter(
        Q(node__name__in=preflight.names) | Q(node=None, run__nodes__name__in=preflight.names),
        kind__in=PROBE_KINDS,
        starts_at__lte=preflight.asked_at,
        ends_at__gt=preflight.asked_at,
    )
    for fault in drilled.select_related("node", "run").distinct():
        hit = [fault.node.name] if fault.node else preflight.names
        put_in += [
            ProbeFault(kind=fault.kind, node=name, device=fault.device, magnitude=fault.magnitude)
            for name in hit
        ]
    return tuple(put_in)
