"""`manage.py preflight`: probe simulated nodes, or judge what probes of real ones printed."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from django.core.management.base import CommandError, CommandParser

from fleet.checks.preflight_files import judge_files, read_files
from fleet.checks.preflight_text import collectives_json, reasons, sentences
from fleet.checks.preflights import (
    load_measured,
    load_result,
    request_preflight,
    run_all_stages,
)
from fleet.management.cli import PlainCommand
from fleet.models import Preflight, Run
from telemetry.checks.preflight import PreflightResult
from telemetry.errors import FieldError
from telemetry.simulate.preflight import PROBE_KINDS, ProbeFault

NOT_PASSED = 1


def option_of(kind: str) -> str:
    return f"--{kind.replace('_', '-')}"


class Command(PlainCommand):
    help = (
        "Probe nodes before scaling out (simulated ones, or FILES that probes of real ones "
        "printed), and say which to use. Exit code 0: pass, 1: hold or fail, 2: bad input."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "files", nargs="*", type=Path, metavar="FILES", help="outputs, or folders of them"
        )
        parser.add_argument("--nodes", default="", help="simulated nodes, separated by commas")
        parser.add_argument("--run", default="", help="all nodes of a run; with FILES, whose run")
        parser.add_argument(
            "--instance", default="", help="instance type, if the fleet does not know the nodes"
        )
        parser.add_argument("--take", type=int, help="how many are wanted; default: all that pass")
        faults = parser.add_argument_group(
            "faults", "Inject a fault that must be found (simulated nodes). Repeat for more."
        )
        for name, kind in PROBE_KINDS.items():
            strength = (
                f" (STRENGTH {kind.least:g} to {kind.most:g}, default {kind.usual:g})"
                if kind.has_strength
                else ""
            )
            faults.add_argument(
                option_of(name),
                action="append",
                nargs="+",
                default=[],
                metavar=(f"NODE {kind.second}".rstrip(), "STRENGTH"),
                help=kind.help + strength,
            )

    def handle(self, *, json: bool, **options: Any) -> None:
        now, by = datetime.now(UTC), "a command"
        run = Run.objects.filter(name=options["run"]).first()
        if options["run"] and run is None:
            raise FieldError("run", f"no run is called {options['run'][:60]!r}")
        names = [name.strip() for name in options["nodes"].split(",") if name.strip()]
        faults = list(injected_faults(options))
        common = {"instance_type": options["instance"], "take": options["take"], "run": run}
        if options["files"]:
            if names or faults:
                raise FieldError("FILES", "cannot be combined with --nodes or faults")
            preflight = judge_files(read_files(options["files"]), **common, by=by, now=now)
        else:
            if run is not None and not names:
                names = list(run.nodes.order_by("rank", "name").values_list("name", flat=True))
            if not names:
                raise FieldError("nodes", "give --nodes a,b,c or --run NAME, or FILES")
            preflight = request_preflight(names, **common, faults=faults, by=by, now=now)
            run_all_stages(preflight, now=now)
        result = load_result(preflight)
        if result is None:
            raise CommandError("the preflight was removed while it ran", returncode=NOT_PASSED)
        if json:
            self.write_json(as_json(preflight, result))
        else:
            self._write(preflight, result)
        if preflight.verdict != Preflight.Verdict.PASS:
            raise SystemExit(NOT_PASSED)

    def _write(self, preflight: Preflight, found: PreflightResult) -> None:
        self.stdout.write(f"Preflight {preflight.pk}: {preflight.verdict}")
        for sentence in sentences(preflight, found):
            self.stdout.write(f"  {sentence}")
        for node, verdict in found.nodes.items():
            text = "; ".join(reasons(found, node)) or ("use it" if node in found.chosen else "")
            self.stdout.write(f"  {verdict.value:<5} {node}  {text}".rstrip())
        self.stdout.write(f"take: {','.join(found.chosen)}")


def injected_faults(options: Mapping[str, Sequence[Sequence[str]]]) -> Iterator[ProbeFault]:
    """Read the faults that the options name; FieldError names the option that is wrong."""
    for name, kind in PROBE_KINDS.items():
        n_names = 2 if kind.second else 1
        for node, *rest in options[name]:
            names, strength = rest[: n_names - 1], rest[n_names - 1 :]
            try:
                if len(names) < n_names - 1 or len(strength) > 1:
                    raise ValueError
                yield ProbeFault(
                    kind=name,
                    node=node,
                    peer=names[0] if kind.second == "NODE" else None,
                    device=int(names[0]) if kind.second == "DEVICE" else None,
                    magnitude=float(strength[0]) if strength else kind.usual,
                )
            except ValueError as error:
                expected = " ".join(filter(None, ("NODE", kind.second, "[STRENGTH]")))
                text = " ".join([node, *rest])
                raise FieldError(
                    option_of(name), f"{text[:60]!r} is wrong; give {expected}"
                ) from error


def as_json(preflight: Preflight, found: PreflightResult) -> dict[str, object]:
    """Return the object that docs/preflight.md describes."""
    return {
        "preflight": preflight.pk,
        "verdict": preflight.verdict,
        "instance": preflight.instance_type,
        "nodes": [
            {
                "node": node,
                "verdict": verdict.value,
                "take": node in found.chosen,
                "reasons": reasons(found, node),
            }
            for node, verdict in found.nodes.items()
        ],
        "troubles": [msgspec.to_builtins(trouble) for trouble in found.troubles],
        "bad_pairs": [[pair.node, pair.peer] for pair in found.pairs],
        "take": list(found.chosen),
        "usual": dict(found.usual),
        "collective_slowdown_ratio": found.slowdown,
        "racks": msgspec.to_builtins(found.racks),
        "collectives": list(collectives_json(load_measured(preflight))),
    }
