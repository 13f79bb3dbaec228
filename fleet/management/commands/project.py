"""`manage.py project`: what a long run costs on each arm, and when a move breaks even."""

from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone
from redis import RedisError

from fleet.management.cli import PlainCommand
from fleet.models import Trial
from fleet.trials.schedule import Projection, ReuseScenario, pair_now, project_request, runs_now
from fleet.trials.schedule_arms import Planned, arms_from_file
from fleet.trials.schedule_forms import DAYS, ENGINEERS, parse_request
from fleet.trials.schedule_text import (
    NAMES,
    as_json,
    assumption_sentence,
    basis_written,
    days,
    dollars,
    engineers_sentence,
    reuse_sentence,
    sentence,
    span,
    written,
)
from telemetry.errors import FieldError
from telemetry.store.hot import hot_store

SOURCES = ("trial", "run", "figures")


class Command(PlainCommand):
    help = "Project what a long run costs on each arm of a trial, of runs, or of given figures."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--trial", help="name of a trial: its baseline and a candidate")
        parser.add_argument("--candidate", default="", help="run of the candidate (the first)")
        parser.add_argument(
            "--run", action="append", help="name of a run; repeat it for a second one"
        )
        parser.add_argument("--figures", metavar="FILE", help="TOML file of one or two arms")
        parser.add_argument("--days", default=DAYS, help=f"length of the run ({DAYS:g})")
        parser.add_argument("--porting-usd", default=0.0, help="what porting costs (0)")
        parser.add_argument(
            "--porting-days", default=0.0, help="days that one engineer ports the model (0)"
        )
        parser.add_argument(
            "--waiting-engineers", default=0.0, help="engineers who wait for the run (0)"
        )
        parser.add_argument("--engineer-usd", default=0.0, help="dollars per day of one engineer")
        parser.add_argument("--tokens", help="instead of --days: train this many tokens")
        parser.add_argument("--failures", help="per node and day (default: as observed)")
        reuse = parser.add_mutually_exclusive_group()
        reuse.add_argument(
            "--reuse", action="store_const", const=True, help="only with a compile cache (both)"
        )
        reuse.add_argument(
            "--no-reuse", dest="reuse", action="store_const", const=False, help="only without"
        )

    def handle(self, *, json: bool, **options: Any) -> None:
        try:
            fields = ("days", "porting_usd", "tokens", "failures", *ENGINEERS)
            given = {field: options[field] for field in fields}
            asked = parse_request({k: str(v) for k, v in given.items() if v is not None})
            planned, projection = project_request(_arms(options), asked)
        except FieldError as error:
            # Fields of a file keep their name; all others are options.
            is_of_file = error.field.startswith("arm")
            field = error.field if is_of_file else f"--{error.field.replace('_', '-')}"
            raise ValueError(f"{field}: {error.message}") from error
        except RedisError as error:
            raise CommandError(f"Redis: {error}. Is it running at REDIS_URL?") from error
        reuse = options["reuse"]
        reuses = (True, False) if reuse is None else (reuse,)
        if json:
            self.write_json(as_json(projection, planned, reuses=reuses))
            return
        self.stdout.write(f"{sentence(projection, planned, has_reuse=reuses[0])}\n")
        self.stdout.write(f"{reuse_sentence(projection, planned)}\n")
        for note in filter(None, (engineers_sentence(asked), assumption_sentence(planned))):
            self.stdout.write(f"{note}\n")
        self.stdout.write("\n")
        for has_reuse in reuses:
            scenario = projection.scenario(has_reuse=has_reuse)
            self.stdout.write("compiled graphs reused" if has_reuse else "without reuse")
            self.write_table(_rows(projection, scenario))
        for each in planned:
            self.stdout.write(f"\n{each.label}: assumptions")
            self.write_table(
                (NAMES[one.name], written(one), basis_written(one)) for one in each.assumptions
            )


def _arms(options: dict[str, Any]) -> tuple[Planned, ...]:
    if sum(bool(options[name]) for name in SOURCES) != 1:
        raise FieldError("trial", "give one of --trial, --run and --figures")
    if options["figures"]:
        return arms_from_file(Path(options["figures"]))
    hot, now = hot_store(), timezone.now()
    if options["run"]:
        return runs_now(hot, options["run"], now=now)
    trial = Trial.objects.with_arms().filter(name=options["trial"]).first()
    if trial is None:
        raise FieldError("trial", f"no trial is called {options['trial'][:60]!r}")
    return pair_now(hot, trial, candidate=options["candidate"], now=now)


def _rows(found: Projection, scenario: ReuseScenario) -> list[tuple[str, str, str]]:
    rows = []
    for arm in scenario.arms:
        rows += [
            (arm.label, dollars(arm.same_days_usd), f"for {days(found.days)}"),
            ("", span(arm.same_days_tokens, "tokens"), "tokens in them"),
            ("", span(arm.same_tokens_usd, "usd"), f"for {found.tokens:.4g} tokens"),
            ("", span(arm.same_tokens_days, "days"), "for those"),
            ("", days(arm.start_days), f"to start, {dollars(arm.usd_at_first_step)} by then"),
        ]
    even, saved = scenario.break_even, scenario.saved_usd
    if even is not None and saved is not None:
        when = span(even.days, "days") if even.days else "never"
        rows += [
            ("break-even", when, even.reason),
            ("saved", span(saved, "usd"), f"for {found.tokens:.4g} tokens"),
        ]
    if scenario.extra_days is not None:
        rows.append(("longer", span(scenario.extra_days, "days"), "than the baseline, for those"))
    return rows
