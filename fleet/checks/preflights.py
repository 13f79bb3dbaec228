"""Taking preflights through their stages; whoever comes second to a stage changes nothing."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import partial
from io import BytesIO
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from django.conf import settings
from django.db import transaction
from django.db.models import Q

from fleet.models import InjectedFault, Node, Preflight, PreflightNode, Run
from telemetry import catalog
from telemetry.catalog import Instance
from telemetry.checks.preflight import PreflightJudgement, judge
from telemetry.checks.preflight_measurements import SLOWER_BY, Collective, Measured
from telemetry.checks.preflight_pairs import NodeVerdict, PreflightFinding
from telemetry.errors import FieldError
from telemetry.simulate import preflight
from telemetry.simulate.preflight import (
    EFA_KINDS,
    PAIR_KINDS,
    PROBE_KINDS,
    ProbedNodes,
    ProbeFault,
)

FAULT_PATTERN = re.compile(
    r"(?P<kind>\w+):(?P<node>[A-Za-z0-9._-]+?)(?:/(?P<device>\d{1,4}))?"
    r"(?:\+(?P<peer>[A-Za-z0-9._-]+?))?(?:=(?P<magnitude>\d{1,6}(?:\.\d{1,6})?))?"
)
FAULT_SYNTAX = (
    "KIND:NODE, KIND:NODE/DEVICE or KIND:NODE+PEER, with =STRENGTH behind it if you like"
)
MIN_STRENGTH = {"efa_latency": 1.0, "pair_slow": 1.0}
MAX_STRENGTH = {"efa_loss": 0.5, "efa_latency": 100.0, "pair_slow": 100.0}
DEFAULT_MAX_STRENGTH = 1_000.0


class FaultError(ValueError):
    """A fault that cannot be put in: says why, and what can."""


def parse_faults(
    words: Iterable[str], nodes: Sequence[str], instance: Instance
) -> list[ProbeFault]:
    """Read faults as people write them, such as ``efa_latency:n-03/5=3``.

    Raises
    ------
    FaultError
        Naming the first that cannot be.
    """
    return [_parsed(word, nodes, instance) for word in words]


def _parsed(word: str, nodes: Sequence[str], instance: Instance) -> ProbeFault:
    match = FAULT_PATTERN.fullmatch(word)
    if match is None:
        raise FaultError(f"{word[:60]!r} is no fault; write {FAULT_SYNTAX}")
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
    if not MIN_STRENGTH.get(kind, 0) <= magnitude <= MAX_STRENGTH.get(kind, DEFAULT_MAX_STRENGTH):
        low, high = MIN_STRENGTH.get(kind, 0), MAX_STRENGTH.get(kind, DEFAULT_MAX_STRENGTH)
        raise FaultError(f"{word!r}: the strength of {kind} goes from {low:g} to {high:g}")
    return ProbeFault(
        kind=kind,
        node=match["node"],
        peer=match["peer"],
        device=None if device is None or kind not in EFA_KINDS else int(device),
        magnitude=magnitude,
    )


def faults_on_nodes(preflight: Preflight) -> tuple[ProbeFault, ...]:
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


# Rounds of pairs are told in so many stages, so that the heat map fills while one looks.
MOST_PAIR_STAGES = 6


@dataclass(frozen=True, slots=True)
class PreflightStage:
    """One stage: its words, and what it adds to what was measured."""

    words: str
    measure: Callable[[ProbedNodes, Measured, int | None], Measured]


def stages(n_nodes: int) -> list[PreflightStage]:
    """Return the stages that so many nodes go through."""
    n_rounds = len(preflight.rounds(n_nodes))
    n_stages = min(n_rounds, MOST_PAIR_STAGES)
    cuts = [n_rounds * i // n_stages for i in range(n_stages + 1)] if n_stages else []
    return [
        PreflightStage("counting accelerators and EFA devices", _count),
        PreflightStage("reading health and counters at rest", _read),
        PreflightStage("probing each EFA device", _probe_devices),
        *(
            PreflightStage(
                f"probing pairs, round {first + 1} to {last} of {n_rounds}",
                partial(_pairs, slice(first, last)),
            )
            for first, last in pairwise(cuts)
        ),
        PreflightStage("running the collective over all nodes", _collective),
        PreflightStage("running the collective over the nodes to take", _collective_of_chosen),
    ]


def _count(bed: ProbedNodes, measured: Measured, take: int | None) -> Measured:
    n_devices, n_efa = preflight.counts(bed)
    return replace(measured, n_devices=n_devices, n_efa_seen=n_efa)


def _read(bed: ProbedNodes, measured: Measured, take: int | None) -> Measured:
    ecc, errors = preflight.errors(bed)
    return replace(
        measured,
        ecc_uncorrected=ecc,
        hardware_errors=errors,
        rest=preflight.at_rest(bed),
        rest_s=preflight.REST_S,
    )


def _probe_devices(bed: ProbedNodes, measured: Measured, take: int | None) -> Measured:
    device_s, loss = preflight.devices(bed)
    return replace(measured, device_s=device_s, device_loss_ratio=loss)


def _pairs(rounds: slice, bed: ProbedNodes, measured: Measured, take: int | None) -> Measured:
    for rows, columns in preflight.rounds(len(bed.nodes))[rounds]:
        measured = measured.with_pairs(rows, columns, preflight.pairs(bed, rows, columns))
    return measured


def _collective(bed: ProbedNodes, measured: Measured, take: int | None) -> Measured:
    return replace(measured, collectives=(preflight.collective(bed, bed.nodes),))


def _collective_of_chosen(bed: ProbedNodes, measured: Measured, take: int | None) -> Measured:
    chosen = judge(measured, bed.instance, take=take).chosen
    if not chosen or chosen == bed.nodes:
        return measured
    also = preflight.collective(bed, chosen)
    return replace(measured, collectives=(*measured.collectives, also))


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
MAX_NODES = 256
MAX_RUNNING = 20


def request_preflight(
    names: Sequence[str],
    *,
    instance_type: str = "",
    take: int | None = None,
    run: Run | None = None,
    faults: Sequence[str] = (),
    by: str,
    now: datetime,
    is_rehearsal: bool | None = None,
) -> Preflight:
    """Ask for a preflight of simulated nodes; workers will take it through its stages.

    Nodes that the fleet does not know are played too, where faults may be put in: a group is
    often tried before it exists. Whether they may is a setting, unless ``is_rehearsal`` says so.

    Raises
    ------
    FieldError
        Where a field cannot be.
    """
    check_names(names, take=take)
    known = Node.objects.in_bulk(list(names), field_name="name")
    is_free = can_inject_faults() if is_rehearsal is None else is_rehearsal
    _check_played(names, known, is_free=is_free)
    kind = common_type(instance_type, known)
    if Preflight.objects.under_way().count() >= MAX_RUNNING:
        raise FieldError("nodes", f"{MAX_RUNNING} preflights are under way; wait for one")
    instance = catalog.instances()[kind]
    try:
        put_in = parse_faults(faults, names, instance)
    except FaultError as error:
        raise FieldError("faults", str(error)) from error
    if put_in and not is_free:
        raise FieldError("faults", "are not put in here; set TRNWATCH_ALLOW_DRILLS=1")
    preflight: Preflight = Preflight.objects.create(
        asked_by=by,
        asked_at=now,
        run=run,
        instance_type=kind,
        names=list(names),
        take=take,
        faults=[msgspec.to_builtins(each) for each in put_in],
        n_stages=len(stages(len(names))),
    )
    return preflight


def check_names(names: Sequence[str], *, take: int | None) -> None:
    """Refuse too few, too many, nameless or twin nodes, and more wanted than there are."""
    if not 1 <= len(names) <= MAX_NODES:
        raise FieldError("nodes", f"{len(names)} are named; name 1 to {MAX_NODES}")
    for name in names:
        if not NAME.fullmatch(name):
            raise FieldError("nodes", f"{name[:80]!r} is no name of a node")
    if twins := sorted({name for name in names if names.count(name) > 1}):
        raise FieldError("nodes", f"{twins[0]} is named twice; name each node once")
    if take is not None and not 1 <= take <= len(names):
        raise FieldError("take", f"{take} of {len(names)} cannot be; choose 1 to {len(names)}")


def common_type(given: str, known: dict[str, Node]) -> str:
    """Return the one type of all nodes."""
    types = sorted({node.instance_type for node in known.values()} | ({given} - {""}))
    if not types:
        raise FieldError("instance_type", "say what type the nodes are")
    if len(types) > 1:
        raise FieldError(
            "instance_type",
            f"nodes must be alike; here are {', '.join(types)}: ask for each alone",
        )
    if types[0] not in catalog.instances():
        raise FieldError(
            "instance_type",
            f"{types[0][:40]!r} is not in the catalogue; choose {', '.join(catalog.instances())}",
        )
    return types[0]


def can_inject_faults() -> bool:
    """Whether faults may be put into simulated nodes here."""
    return bool(settings.DEMO or settings.ALLOW_DRILLS)


def _check_played(names: Sequence[str], known: dict[str, Node], *, is_free: bool) -> None:
    """Refuse nodes that nobody can probe from here."""
    real = [name for name in names if name in known and not _is_played(known[name])]
    strange = [name for name in names if name not in known]
    if real:
        raise FieldError(
            "nodes",
            f"{real[0]} is a real node: probe it where it stands and hand in the files, "
            "`manage.py preflight FILES`; docs/preflight.md has the loop",
        )
    if strange and not is_free:
        raise FieldError("nodes", f"{strange[0]} is no node of the fleet")


def _is_played(node: Node) -> bool:
    return node.source == Node.Source.SIMULATED


class PreflightResult(msgspec.Struct, frozen=True, kw_only=True):
    """The verdicts of one preflight; figures that nobody knows are null."""

    nodes: Mapping[str, NodeVerdict]
    troubles: tuple[PreflightFinding, ...] = ()
    chosen: tuple[str, ...] = ()
    n_wanted: int = 0
    usual: Mapping[str, float | None] = {}
    slowdown: float | None = None

    def of(self, node: str) -> list[PreflightFinding]:
        """Return what is held against a node, alone or with another."""
        return [each for each in self.troubles if node in {each.node, each.peer}]

    @property
    def own(self) -> list[PreflightFinding]:
        """What nodes have by themselves."""
        return [each for each in self.troubles if not each.is_of_pair]

    @property
    def pairs(self) -> list[PreflightFinding]:
        """What two nodes have together."""
        return [each for each in self.troubles if each.is_of_pair]

    @property
    def is_slow(self) -> bool:
        """Whether the collective over the chosen nodes took too long."""
        return self.slowdown is not None and self.slowdown > SLOWER_BY


def result_of(judged: PreflightJudgement) -> PreflightResult:
    """Write a judgement as it is kept."""
    return PreflightResult(
        nodes=judged.nodes,
        troubles=tuple(judged.troubles),
        chosen=judged.chosen,
        n_wanted=judged.n_wanted,
        usual={name: _known(value) for name, value in judged.usual.items()},
        slowdown=_known(judged.slowdown),
    )


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def dump_result(found: PreflightResult) -> dict[str, object]:
    """Return what a JSON field keeps."""
    return dict(msgspec.to_builtins(found))


def load_result(preflight: Preflight) -> PreflightResult | None:
    """Return what a preflight found; None while it is under way."""
    if not preflight.is_over or not preflight.found:
        return None
    return msgspec.convert(preflight.found, PreflightResult)


def group_verdict(found: PreflightResult, *, take: int | None) -> NodeVerdict:
    """Return what is said of the group.

    It fails where fewer can come than are wanted, and is held where some must stay although all
    were asked for, or where the collective over those that come is too slow.
    """
    if not found.chosen or len(found.chosen) < (take or 0):
        return NodeVerdict.FAIL
    some_stay = take is None and len(found.chosen) < len(found.nodes)
    return NodeVerdict.HOLD if some_stay or found.is_slow else NodeVerdict.PASS


PACKED_ARRAYS = tuple(
    each.name
    for each in fields(Measured)
    if each.name not in {"nodes", "rest", "rest_s", "collectives"}
)


def pack(measured: Measured) -> bytes:
    """Return what was measured as bytes; figures keep seven digits."""
    arrays: dict[str, Any] = {name: getattr(measured, name).astype("f4") for name in PACKED_ARRAYS}
    arrays |= {f"rest:{name}": moved for name, moved in measured.rest.items()}
    for i, each in enumerate(measured.collectives):
        arrays[f"collective:{i}:nodes"] = np.array([*each.nodes, each.op], dtype=np.str_)
        arrays[f"collective:{i}"] = np.array([each.size_bytes, each.time_s, each.expected_s])
    file = BytesIO()
    np.savez_compressed(
        file,
        allow_pickle=False,
        nodes=np.array(measured.nodes, dtype=np.str_),
        rest_s=np.array(measured.rest_s),
        **arrays,
    )
    return file.getvalue()


def unpack(data: bytes) -> Measured:
    """Return what was packed."""
    with np.load(BytesIO(data), allow_pickle=False) as kept:
        held = {name: kept[name] for name in kept.files}
    nodes = tuple(str(name) for name in held["nodes"])
    n_collectives = sum(name.endswith(":nodes") for name in held)
    blank = Measured.nothing_of(nodes, n_efa=0)
    return replace(
        blank,
        **{name: held[name].astype(float) for name in PACKED_ARRAYS},
        rest={n.removeprefix("rest:"): v for n, v in held.items() if n.startswith("rest:")},
        rest_s=float(held["rest_s"]),
        collectives=tuple(_packing_collective(held, i) for i in range(n_collectives)),
    )


def _packing_collective(held: dict[str, Any], i: int) -> Collective:
    *nodes, op = (str(name) for name in held[f"collective:{i}:nodes"])
    size_bytes, time_s, expected_s = held[f"collective:{i}"]
    return Collective(tuple(nodes), size_bytes, time_s, expected_s, op)


def advance_all(*, now: datetime) -> int:
    """Take every preflight that is under way one stage further; return how many there were."""
    waiting = list(Preflight.objects.under_way().filter(source=Preflight.Source.SIMULATED))
    for each in waiting:
        advance(each, now=now)
    return len(waiting)


def advance(preflight: Preflight, *, now: datetime) -> bool:
    """Take a preflight one stage further; False where another worker did or it is over.

    The last stage judges what was measured.
    """
    if preflight.is_over:
        return False
    bed, before = probed_nodes(preflight), preflight.n_done
    stage = stages(len(bed.nodes))[before]
    measured = stage.measure(bed, load_measured(preflight), preflight.take)
    with transaction.atomic():
        mine = Preflight.objects.filter(pk=preflight.pk, n_done=before, finished_at=None)
        if not mine.update(n_done=before + 1, measured=pack(measured)):
            return False
        preflight.n_done, preflight.measured = before + 1, pack(measured)
        if preflight.n_done == preflight.n_stages:
            store_verdict(preflight, measured, now=now)
    return True


def run_all_stages(preflight: Preflight, *, now: datetime) -> None:
    """Take a preflight through all its stages at once."""
    while advance(preflight, now=now):
        pass


def store_verdict(preflight: Preflight, measured: Measured, *, now: datetime) -> None:
    """Judge what was measured, and keep the verdicts."""
    instance = catalog.instances().get(preflight.instance_type)
    found = result_of(judge(measured, instance, take=preflight.take))
    preflight.finished_at = now
    preflight.found = dump_result(found)
    preflight.verdict = group_verdict(found, take=preflight.take).value
    preflight.save(update_fields=["finished_at", "found", "verdict"])
    PreflightNode.objects.bulk_create(
        PreflightNode(
            preflight=preflight, name=name, verdict=verdict.value, is_chosen=name in found.chosen
        )
        for name, verdict in found.nodes.items()
    )


def probed_nodes(preflight: Preflight) -> ProbedNodes:
    """Return the nodes to probe, with all that is wrong with them."""
    n_devices = Node.objects.filter(name__in=preflight.names).values_list("name", "n_devices")
    return ProbedNodes(
        nodes=tuple(preflight.names),
        instance_name=preflight.instance_type,
        seed=preflight.pk,
        faults=faults_on_nodes(preflight),
        n_devices=dict(n_devices),
    )


def load_measured(preflight: Preflight) -> Measured:
    """Return what was measured so far."""
    if preflight.measured:
        return unpack(bytes(preflight.measured))
    instance = catalog.instances().get(preflight.instance_type)
    return Measured.nothing_of(tuple(preflight.names), n_efa=instance.n_efa if instance else 0)
