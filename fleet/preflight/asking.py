"""Asking for a preflight: which nodes, how many of them are wanted, and whether that can be."""

import re
from collections.abc import Sequence
from datetime import datetime

import msgspec
from django.conf import settings

from fleet.models import Node, Preflight, Run
from fleet.preflight.faults import FaultError, parsed
from fleet.preflight.stages import stages
from telemetry import catalog

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")
MOST_NODES = 256
MOST_UNDER_WAY = 20


class PreflightError(ValueError):
    """A preflight that cannot be; ``field`` is the one to mend."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


def ask(
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
    PreflightError
        Where a field cannot be.
    """
    check_names(names, take=take)
    known = Node.objects.in_bulk(list(names), field_name="name")
    is_free = may_rehearse() if is_rehearsal is None else is_rehearsal
    _check_played(names, known, is_free=is_free)
    kind = type_of(instance_type, known)
    if Preflight.objects.under_way().count() >= MOST_UNDER_WAY:
        raise PreflightError("nodes", f"{MOST_UNDER_WAY} preflights are under way; wait for one")
    instance = catalog.instances()[kind]
    try:
        put_in = parsed(faults, names, instance)
    except FaultError as error:
        raise PreflightError("faults", str(error)) from error
    if put_in and not is_free:
        raise PreflightError("faults", "are not put in here; set TRNWATCH_ALLOW_DRILLS=1")
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
    if not 1 <= len(names) <= MOST_NODES:
        raise PreflightError("nodes", f"{len(names)} are named; name 1 to {MOST_NODES}")
    for name in names:
        if not NAME.fullmatch(name):
            raise PreflightError("nodes", f"{name[:80]!r} is no name of a node")
    if twins := sorted({name for name in names if names.count(name) > 1}):
        raise PreflightError("nodes", f"{twins[0]} is named twice; name each node once")
    if take is not None and not 1 <= take <= len(names):
        raise PreflightError("take", f"{take} of {len(names)} cannot be; choose 1 to {len(names)}")


def type_of(given: str, known: dict[str, Node]) -> str:
    """Return the one type of all nodes."""
    types = sorted({node.instance_type for node in known.values()} | ({given} - {""}))
    if not types:
        raise PreflightError("instance_type", "say what type the nodes are")
    if len(types) > 1:
        raise PreflightError(
            "instance_type",
            f"nodes must be alike; here are {', '.join(types)}: ask for each alone",
        )
    if types[0] not in catalog.instances():
        raise PreflightError(
            "instance_type",
            f"{types[0][:40]!r} is not in the catalogue; choose {', '.join(catalog.instances())}",
        )
    return types[0]


def may_rehearse() -> bool:
    """Whether faults may be put into simulated nodes here."""
    return bool(settings.DEMO or settings.ALLOW_DRILLS)


def _check_played(names: Sequence[str], known: dict[str, Node], *, is_free: bool) -> None:
    """Refuse nodes that nobody can probe from here."""
    real = [name for name in names if name in known and not _is_played(known[name])]
    strange = [name for name in names if name not in known]
    if real:
        raise PreflightError(
            "nodes",
            f"{real[0]} is a real node: probe it where it stands and hand in the files, "
            "`manage.py preflight FILES`; docs/preflight.md has the loop",
        )
    if strange and not is_free:
        raise PreflightError("nodes", f"{strange[0]} is no node of the fleet")


def _is_played(node: Node) -> bool:
    return node.source == Node.Source.SIMULATED
