"""Request preflights, run their stages, store what they find; runs that require one."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from io import BytesIO
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from django.conf import settings
from django.db import transaction
from django.db.models import Q

from fleet.alerts import reconcile
from fleet.models import Alert, Annotation, InjectedFault, Node, Preflight, PreflightNode, Run
from fleet.notifications.manual import record_change
from telemetry import catalog
from telemetry.catalog import Instance
from telemetry.checks.preflight import PreflightResult, judge
from telemetry.checks.preflight_measurements import Collective, Measured
from telemetry.checks.preflight_pairs import NodeVerdict
from telemetry.detect import RULES, Finding
from telemetry.detect.causes import UNKNOWN
from telemetry.errors import FieldError
from telemetry.simulate import preflight
from telemetry.simulate.preflight import (
    EFA_KINDS,
    PAIR_KINDS,
    PROBE_KINDS,
    ProbedNodes,
    ProbeFault,
)


def check_faults(faults: Iterable[ProbeFault], nodes: Sequence[str], instance: Instance) -> None:
    for fault in faults:
        kind, of = fault.kind, f"{fault.kind} of {fault.node}"
        if kind not in PROBE_KINDS:
            raise FieldError(
                "faults", f"{kind!r} is no kind of fault; choose one of {', '.join(PROBE_KINDS)}"
            )
        for node in filter(None, (fault.node, fault.peer)):
            if node not in nodes:
                raise FieldError("faults", f"{kind}: {node!r} is not one of the nodes to probe")
        if (kind in PAIR_KINDS) != (fault.peer is not None) or fault.peer == fault.node:
            raise FieldError(
                "faults", f"{of}: {' and '.join(PAIR_KINDS)} take two nodes, the others one"
            )
        if kind not in EFA_KINDS:
            if fault.device is not None:
                raise FieldError(
                    "faults", f"{of}: only {', '.join(EFA_KINDS)} take a device; leave it out"
                )
        elif fault.device is None or not 0 <= fault.device < instance.n_efa:
            raise FieldError(
                "faults",
                f"{of}: give one of the {instance.n_efa} EFA devices of {instance.name}, from 0",
            )
        least, most = PROBE_KINDS[kind].least, PROBE_KINDS[kind].most
        if not least <= fault.magnitude <= most:
            raise FieldError(
                "faults",
                f"{of}: magnitude {fault.magnitude:g} is out of range; give {least:g} to {most:g}",
            )


def faults_on_nodes(preflight: Preflight) -> tuple[ProbeFault, ...]:
    """List a preflight's own faults, and those of drills that were active then."""
    faults = [msgspec.convert(each, ProbeFault) for each in preflight.faults]
    drills = InjectedFault.objects.filter(
        Q(node__name__in=preflight.names) | Q(node=None, run__nodes__name__in=preflight.names),
        kind__in=PROBE_KINDS,
        starts_at__lte=preflight.asked_at,
        ends_at__gt=preflight.asked_at,
    )
    for fault in drills.select_related("node", "run").distinct():
        hit = [fault.node.name] if fault.node else preflight.names
        faults += [
            ProbeFault(kind=fault.kind, node=name, device=fault.device, magnitude=fault.magnitude)
            for name in hit
        ]
    return tuple(faults)


# Rounds of pairs are split into so many stages, so that the page counts them step by step.
MOST_PAIR_STAGES = 6


@dataclass(frozen=True, slots=True)
class PreflightStage:
    """What a stage measures; of pairs, those of some rounds."""

    label: str
    measures: str
    rounds: tuple[int, int] = (0, 0)


def stages(n_nodes: int) -> list[PreflightStage]:
    n_rounds = len(preflight.rounds(n_nodes))
    n_stages = min(n_rounds, MOST_PAIR_STAGES)
    cuts = [n_rounds * i // n_stages for i in range(n_stages + 1)] if n_stages else []
    return [
        PreflightStage("counting accelerators and EFA devices", "devices"),
        PreflightStage("reading health and counters at rest", "health"),
        PreflightStage("probing each EFA device", "links"),
        *(
            PreflightStage(
                f"probing pairs, round {first + 1} to {last} of {n_rounds}", "pairs", (first, last)
            )
            for first, last in pairwise(cuts)
        ),
        PreflightStage("running the collective over all nodes", "collective"),
        PreflightStage("running the collective over the nodes to take", "chosen"),
    ]


def measure(
    stage: PreflightStage, bed: ProbedNodes, measured: Measured, *, take: int | None
) -> Measured:
    collectives: tuple[Collective, ...] = ()
    match stage.measures:
        case "devices":
            n_devices, n_efa = preflight.counts(bed)
            measured = replace(measured, n_devices=n_devices, n_efa_seen=n_efa)
        case "health":
            ecc, errors = preflight.errors(bed)
            measured = replace(measured, ecc_uncorrected=ecc, hardware_errors=errors)
            measured = replace(measured, rest=preflight.at_rest(bed), rest_s=preflight.REST_S)
        case "links":
            device_s, loss = preflight.devices(bed)
            measured = replace(measured, device_s=device_s, device_loss_ratio=loss)
        case "pairs":
            first, last = stage.rounds
            for rows, columns in preflight.rounds(len(bed.nodes))[first:last]:
                values = preflight.pairs(bed, rows, columns)
                measured = measured.with_pairs(rows, columns, values)
        case "collective":
            collectives = (preflight.collective(bed, bed.nodes),)
        case "chosen":
            chosen = judge(measured, bed.instance, take=take).chosen
            if chosen and chosen != bed.nodes:
                collectives = (*measured.collectives, preflight.collective(bed, chosen))
    return replace(measured, collectives=collectives or measured.collectives)


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
MAX_NODES = 256
MAX_RUNNING = 20


def request_preflight(
    names: Sequence[str],
    *,
    instance_type: str = "",
    take: int | None = None,
    run: Run | None = None,
    faults: Sequence[ProbeFault] = (),
    by: str,
    now: datetime,
    is_rehearsal: bool | None = None,
) -> Preflight:
    """Request a preflight of simulated nodes; workers run its stages.

    Where faults may be injected, nodes that the fleet does not know are simulated too: a group is
    often tried before it exists. A setting decides this, unless ``is_rehearsal`` does.

    Raises FieldError where a field is invalid.
    """
    check_names(names, take=take)
    known = Node.objects.in_bulk(list(names), field_name="name")
    is_free = settings.ALLOW_DRILLS if is_rehearsal is None else is_rehearsal
    real = [node.name for node in known.values() if node.source != Node.Source.SIMULATED]
    unknown = [name for name in names if name not in known]
    if real:
        raise FieldError(
            "nodes",
            f"{real[0]} is a real node: probe it on its host and judge the files, "
            "`manage.py preflight FILES`; docs/preflight.md has the loop",
        )
    if unknown and not is_free:
        raise FieldError("nodes", f"{unknown[0]} is no node of the fleet")
    kind = common_type(instance_type, known)
    if Preflight.objects.unfinished().count() >= MAX_RUNNING:
        raise FieldError("nodes", f"{MAX_RUNNING} preflights are running; wait for one to end")
    instance = catalog.instances()[kind]
    check_faults(faults, names, instance)
    if faults and not is_free:
        raise FieldError("faults", "cannot be injected here; set TRNWATCH_ALLOW_DRILLS=1")
    preflight: Preflight = Preflight.objects.create(
        asked_by=by,
        asked_at=now,
        run=run,
        instance_type=kind,
        names=list(names),
        take=take,
        faults=[msgspec.to_builtins(fault) for fault in faults],
        n_stages=len(stages(len(names))),
    )
    return preflight


def check_names(names: Sequence[str], *, take: int | None) -> None:
    if not 1 <= len(names) <= MAX_NODES:
        raise FieldError("nodes", f"{len(names)} are given; give 1 to {MAX_NODES}")
    for name in names:
        if not NAME.fullmatch(name):
            raise FieldError("nodes", f"{name[:80]!r} is no name of a node")
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise FieldError("nodes", f"{duplicates[0]} is given twice; give each node once")
    if take is not None and not 1 <= take <= len(names):
        raise FieldError(
            "take", f"{take} of {len(names)} nodes is impossible; choose 1 to {len(names)}"
        )


def common_type(given: str, known: dict[str, Node]) -> str:
    types = sorted({node.instance_type for node in known.values()} | ({given} - {""}))
    if not types:
        raise FieldError("instance_type", "give the type of the nodes")
    if len(types) > 1:
        raise FieldError(
            "instance_type",
            f"nodes must be of one type; these are {', '.join(types)}: probe each type alone",
        )
    if types[0] not in catalog.instances():
        raise FieldError(
            "instance_type",
            f"{types[0][:40]!r} is not in the catalogue; choose {', '.join(catalog.instances())}",
        )
    if not (kind := catalog.instances()[types[0]]).has_step_model:
        raise FieldError(
            "instance_type",
            f"{kind.name} has no expected curve: no collective on {kind.chip.name} is published",
        )
    return types[0]


def load_result(preflight: Preflight) -> PreflightResult | None:
    if not preflight.is_over or not preflight.found:
        return None
    return msgspec.convert(preflight.found, PreflightResult)


def group_verdict(found: PreflightResult, *, take: int | None) -> NodeVerdict:
    """Judge the group.

    It fails where fewer nodes can be used than are wanted. It is held where some cannot be used
    although all are wanted, or where the collective over the chosen nodes is too slow.
    """
    if not found.chosen or len(found.chosen) < (take or 0):
        return NodeVerdict.FAIL
    are_some_excluded = take is None and len(found.chosen) < len(found.nodes)
    return NodeVerdict.HOLD if are_some_excluded or found.is_slow else NodeVerdict.PASS


PACKED_ARRAYS = tuple(
    field.name
    for field in fields(Measured)
    if field.name not in {"nodes", "rest", "rest_s", "collectives", "racks"}
)


def pack(measured: Measured) -> bytes:
    """Pack measurements into bytes; figures keep seven digits."""
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
        racks=np.array(measured.racks, dtype=np.str_),
        **arrays,
    )
    return file.getvalue()


def unpack(data: bytes) -> Measured:
    with np.load(BytesIO(data), allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    nodes = tuple(str(name) for name in arrays["nodes"])
    collectives = []
    for i in range(sum(name.endswith(":nodes") for name in arrays)):
        *members, op = (str(name) for name in arrays[f"collective:{i}:nodes"])
        size_bytes, time_s, expected_s = arrays[f"collective:{i}"]
        collectives.append(Collective(tuple(members), size_bytes, time_s, expected_s, op))
    blank = Measured.blank(nodes, n_efa=0)
    return replace(
        blank,
        **{name: arrays[name].astype(float) for name in PACKED_ARRAYS},
        rest={n.removeprefix("rest:"): v for n, v in arrays.items() if n.startswith("rest:")},
        rest_s=float(arrays["rest_s"]),
        racks=tuple(str(rack) for rack in arrays.get("racks", ())),
        collectives=tuple(collectives),
    )


def advance_all(*, now: datetime) -> int:
    """Run one stage of every preflight in progress; return their number."""
    waiting = list(Preflight.objects.unfinished().filter(source=Preflight.Source.SIMULATED))
    for each in waiting:
        advance(each, now=now)
    return len(waiting)


def advance(preflight: Preflight, *, now: datetime) -> bool:
    """Run the next stage of a preflight; False where another worker did, or it is over.

    The last stage judges what was measured.
    """
    if preflight.is_over:
        return False
    bed, before = probed_nodes(preflight), preflight.n_done
    stage = stages(len(bed.nodes))[before]
    measured = measure(stage, bed, load_measured(preflight), take=preflight.take)
    with transaction.atomic():
        mine = Preflight.objects.filter(pk=preflight.pk, n_done=before, finished_at=None)
        if not mine.update(n_done=before + 1, measured=pack(measured)):
            return False
        preflight.n_done, preflight.measured = before + 1, pack(measured)
        if preflight.n_done == preflight.n_stages:
            store_verdict(preflight, measured, now=now)
    return True


def run_all_stages(preflight: Preflight, *, now: datetime) -> None:
    while advance(preflight, now=now):
        pass


def store_verdict(preflight: Preflight, measured: Measured, *, now: datetime) -> None:
    instance = catalog.instances().get(preflight.instance_type)
    result = judge(measured, instance, take=preflight.take)
    preflight.finished_at = now
    preflight.found = msgspec.to_builtins(result)
    preflight.verdict = group_verdict(result, take=preflight.take).value
    preflight.save(update_fields=["finished_at", "found", "verdict"])
    PreflightNode.objects.bulk_create(
        PreflightNode(
            preflight=preflight, name=name, verdict=verdict.value, is_chosen=name in result.chosen
        )
        for name, verdict in result.nodes.items()
    )


def probed_nodes(preflight: Preflight) -> ProbedNodes:
    n_devices = Node.objects.filter(name__in=preflight.names).values_list("name", "n_devices")
    return ProbedNodes(
        nodes=tuple(preflight.names),
        instance_name=preflight.instance_type,
        seed=preflight.pk,
        faults=faults_on_nodes(preflight),
        n_devices=dict(n_devices),
    )


def load_measured(preflight: Preflight) -> Measured:
    if preflight.measured:
        return unpack(bytes(preflight.measured))
    instance, nodes = catalog.instances().get(preflight.instance_type), tuple(preflight.names)
    blank = Measured.blank(nodes, n_efa=instance.n_efa if instance else 0)
    return replace(blank, racks=places(nodes, Node.objects.filter(name__in=nodes)))


def places(names: Sequence[str], known: Iterable[Node]) -> tuple[str, ...]:
    """Return what groups the nodes: the UltraServer if all of one zone have one, else the zone.

    Empty if unknown.
    """
    nodes = {node.name: node for node in known}
    servers = tuple(nodes[name].ultraserver_id if name in nodes else "" for name in names)
    zones = tuple(nodes[name].zone if name in nodes else "" for name in names)
    return servers if all(servers) and len(set(zones)) == 1 else zones


NO_PREFLIGHT = "No preflight of all its nodes ended in the 24 hours before the start."


def update_preflight_doubts() -> int:
    """Check every run that requires a preflight; return how many changed."""
    exempt = Run.objects.filter(requires_preflight=False).exclude(preflight_doubt="")
    n_changed = exempt.update(preflight_doubt="")
    for run in Run.objects.active().filter(requires_preflight=True).prefetch_related("nodes"):
        names = [node.name for node in run.nodes.all()]
        if (
            names
            and (doubt := missing_preflight_reason(names, run.started_at)) != run.preflight_doubt
        ):
            n_changed += Run.objects.filter(pk=run.pk).update(preflight_doubt=doubt)
    return n_changed


@transaction.atomic
def set_requirement_by(run: Run, *, requires: bool, by: str, now: datetime) -> None:
    """Set whether a run requires a preflight, and log a change."""
    if run.requires_preflight != requires:
        what = "a preflight before it starts" if requires else "no preflight"
        record_change(f"set {run.name} to require {what}", by=by, now=now)
        Annotation.objects.create(
            run=run, at=now, kind=Annotation.Kind.NOTE, by=by, text=f"set to require {what}"
        )
    set_requirement(run, requires=requires)


def set_requirement(run: Run, *, requires: bool) -> None:
    """Set whether a run requires a preflight, and check at once whether it had one."""
    names = list(Node.objects.filter(run=run).values_list("name", flat=True))
    run.requires_preflight = requires
    run.preflight_doubt = (
        missing_preflight_reason(names, run.started_at) if requires and names else ""
    )
    run.save(update_fields=["requires_preflight", "preflight_doubt"])


def missing_preflight_reason(names: Sequence[str], started_at: datetime) -> str:
    """Explain why a run should not have started; empty where a preflight passed its nodes.

    The newest preflight of all of them counts, if it was over by then and not a day before.
    """
    for candidate in Preflight.objects.valid_at(started_at).defer("measured"):
        result = load_result(candidate)
        if result is not None and set(names) <= set(result.nodes):
            wanted = set(names)
            own = {t.node for t in result.own if t.verdict is not NodeVerdict.PASS}
            if bad := sorted(own & wanted):
                more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
                return f"Preflight {candidate.pk} did not pass {bad[0]}{more}."
            for pair in result.pairs:
                if {pair.node, pair.peer} <= wanted:
                    return (
                        f"Preflight {candidate.pk} allows only one of {pair.node} and {pair.peer}."
                    )
            if result.is_slow and set(result.chosen) <= wanted:
                return f"In preflight {candidate.pk} the collective over these nodes was too slow."
            return ""
    return NO_PREFLIGHT


RULE = "preflight"


def update_preflight_alerts(*, now: datetime) -> list[Alert]:
    """Check the runs that require a preflight, and reconcile their alerts.

    Returns the changed alerts. A finished run keeps its flag, and its alert resolves.
    """
    update_preflight_doubts()
    doubtful = Run.objects.active().filter(requires_preflight=True).exclude(preflight_doubt="")
    findings = [finding_of(run) for run in doubtful.defer("plan", "clock")]
    names = Run.objects.active().values_list("name", flat=True)
    return reconcile(findings, evaluated={(RULE, f"run:{name}") for name in names}, now=now)


def finding_of(run: Run) -> Finding:
    return Finding(
        rule=RULE,
        cause=UNKNOWN,
        severity=RULES[RULE].severity,
        run=run.name,
        onset_s=run.started_at.timestamp(),
        score=1.0,
        evidence={"doubt": run.preflight_doubt, "started_s": run.started_at.timestamp()},
    )
