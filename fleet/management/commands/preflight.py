"""`manage.py preflight`: probe simulated nodes, or judge what probes of real ones printed."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from django.core.management.base import CommandError, CommandParser

from fleet.checks.preflight_files import judge_files, read_files
from fleet.checks.preflight_matrix import collectives_json
from fleet.checks.preflight_text import reasons, sentences
from fleet.checks.preflights import (
    PreflightResult,
    load_measured,
    load_result,
    request_preflight,
    run_all_stages,
)
from fleet.management.cli import PlainCommand
from fleet.models import Preflight, Run
from telemetry.errors import FieldError

NOT_PASSED = 1


class Command(PlainCommand):
    """Say which nodes to take; exit code 1 where the group is held or fails."""

    help = (
        "Probe nodes before scaling out (simulated ones, or FILES that probes of real ones "
        "printed), and say which to take. Exit code 0: pass, 1: hold or fail, 2: bad input."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Take nodes, a run, or files."""
        super().add_arguments(parser)
        parser.add_argument(
            "files", nargs="*", type=Path, metavar="FILES", help="outputs, or folders of them"
        )
        parser.add_argument("--nodes", default="", help="simulated nodes, apart by commas")
        parser.add_argument("--run", default="", help="all nodes of a run; with FILES, whose run")
        parser.add_argument(
            "--instance", default="", help="type, where the fleet does not know it"
        )
        parser.add_argument("--take", type=int, help="how many are wanted; else all that can come")
        parser.add_argument(
            "--fault",
            action="append",
            default=[],
            metavar="KIND:NODE[/DEVICE][+PEER][=STRENGTH]",
            help="put something in that must be found (simulated nodes); may be repeated",
        )

    def handle(self, *, json: bool, **options: Any) -> None:
        """Probe, judge, keep and print."""
        preflight = _made(options)
        found = load_result(preflight)
        if found is None:
            raise CommandError("the preflight was taken away while it ran", returncode=NOT_PASSED)
        if json:
            self.write_json(answer(preflight, found))
        else:
            self._write(preflight, found)
        if preflight.verdict != Preflight.Verdict.PASS:
            raise SystemExit(NOT_PASSED)

    def _write(self, preflight: Preflight, found: PreflightResult) -> None:
        self.stdout.write(f"Preflight {preflight.pk}: {preflight.verdict}")
        for sentence in sentences(preflight, found):
            self.stdout.write(f"  {sentence}")
        for node, verdict in found.nodes.items():
            said = "; ".join(reasons(found, node)) or ("to take" if node in found.chosen else "")
            self.stdout.write(f"  {verdict.value:<5} {node}  {said}".rstrip())
        self.stdout.write(f"take: {','.join(found.chosen)}")


def _made(options: dict[str, Any]) -> Preflight:
    """Make the preflight that was asked for."""
    now, by = datetime.now(UTC), "a command"
    run = _run(options["run"])
    names = [name.strip() for name in options["nodes"].split(",") if name.strip()]
    common = {"instance_type": options["instance"], "take": options["take"], "run": run}
    if options["files"]:
        if names or options["fault"]:
            raise FieldError("FILES", "go with neither --nodes nor --fault")
        return judge_files(read_files(options["files"]), **common, by=by, now=now)
    if run is not None and not names:
        names = list(run.nodes.order_by("rank", "name").values_list("name", flat=True))
    if not names:
        raise FieldError("nodes", "name them: --nodes a,b,c or --run NAME, or hand in FILES")
    preflight = request_preflight(names, **common, faults=options["fault"], by=by, now=now)
    run_all_stages(preflight, now=now)
    return preflight


def _run(name: str) -> Run | None:
    if not name:
        return None
    run = Run.objects.filter(name=name).first()
    if run is None:
        raise FieldError("run", f"no run is called {name[:60]!r}")
    return run


def answer(preflight: Preflight, found: PreflightResult) -> dict[str, object]:
    """Return a preflight as one object; what is not known is null."""
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
        "troubles": [msgspec.to_builtins(each) for each in found.troubles],
        "bad_pairs": [[each.node, each.peer] for each in found.pairs],
        "take": list(found.chosen),
        "usual": dict(found.usual),
        "collective_slowdown_ratio": found.slowdown,
        "collectives": list(collectives_json(load_measured(preflight))),
    }
