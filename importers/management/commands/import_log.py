"""`manage.py import_log`: store a training log as a finished run, with compiles and errors."""

import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from fleet.alerts.recompiles import raise_from_log
from fleet.formatting import si
from fleet.management.cli import PlainCommand
from fleet.models import ReadLog
from fleet.runs.compile_summaries import compile_summary
from fleet.runs.imported import coverage_text, log_caveats, times_text, unpack_curves
from importers.logs import TABLE, Log, LogContext, read_logs
from importers.store.logs import LogOptions, check_options, last_of, save_log
from telemetry import catalog
from telemetry.blocks import median_of
from telemetry.units import HOUR_S

LACKS = {
    "step": "They have no step number. Write a table with the columns step, step_s and loss, and "
    "use import_run",
    "time": "They have neither the time of a step nor a rate. Write a table with the columns "
    "step, ended_at and loss, and use import_run; without ended_at, give it --step-s",
    "": "Their format is not known. Write a table with the columns step, step_s and loss, and use "
    "import_run; --global-batch and --seq-len give it tokens",
}
FARTHEST_ZONE_HOURS = 14.0
TEXTS = (
    ("--model", "name of the model, as in the catalog if it is there"),
    ("--instance", "instance type it ran on; with --nodes, the list price follows"),
    ("--precision", "such as bf16 or fp8, for the share of the peak"),
    ("--optimizer", "such as AdamW, if the log does not say"),
    ("--team", "team of the run"),
)
NUMBERS = (
    ("--nodes", 0, "number of nodes"),
    ("--global-batch", 0, "sequences per step, if the log does not say"),
    ("--seq-len", 0, "tokens per sequence; default: count sequences, not tokens"),
    ("--tokens-per-epoch", 0, "tokens of one epoch, for its cost"),
    ("--tp", 1, "tensor-parallel size, for the page"),
    ("--pp", 1, "pipeline-parallel size, for the page"),
)


class Command(PlainCommand):
    help = "Import a training log (plain or compressed): steps, compile cache, errors."
    files = "a log; several logs of one run"

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("file", nargs="+", metavar="FILE", help=self.files)
        parser.add_argument("--run", required=True, help="name of the run it becomes")
        for option, text in TEXTS:
            parser.add_argument(option, default="", help=text)
        for option, default, text in NUMBERS:
            parser.add_argument(option, type=int, default=default, help=text)
        parser.add_argument(
            "--started-at", default="", help="ISO 8601; if the lines of the log have no times"
        )
        self.add_more(parser)
        parser.add_argument(
            "--utc-offset", type=float, default=0.0, help="hours; for times without a zone"
        )

    def add_more(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--log-every",
            type=int,
            default=1,
            help="steps between lines, if these have no step numbers",
        )

    def handle(self, *, json: bool, **options: Any) -> None:
        kept = self.imported(options)
        for doubt in [*_unknown(options), *log_caveats(kept)]:
            self.stderr.write(f"warning: {doubt}")
        answer = _answer(kept)
        if json:
            self.write_json(answer)
            return
        self.stdout.write(f"{kept.run}: {coverage_text(kept)}.\n\n")
        self.write_table(_rows(kept, answer))
        for kind, title in (("damaged", "incomplete"), ("others", "of unknown kinds")):
            if examples := kept.details[kind]:
                self.stdout.write(f"\nfirst lines {title}:\n")
                for example in examples:
                    self.stdout.write(
                        f"  {example['file']}:{example['number']}: {example['text']}"
                    )

    def imported(self, options: dict[str, Any]) -> ReadLog:
        about, offset_s = options_of(options), utc_offset_s(options)
        every = options["log_every"]
        if not 1 <= every <= 1_000_000:
            raise ValueError(f"--log-every: {every} is out of range; give 1 to 1,000,000")
        paths = [Path(name) for name in options["file"]]
        try:
            file_s = max(path.stat().st_mtime for path in paths)
            year = datetime.fromtimestamp(file_s, UTC).year
            log = read_logs(paths, LogContext(year=year, utc_offset_s=offset_s, log_every=every))
        except OSError as error:
            raise ValueError(f"FILE: {error.filename or paths[0]}: {error.strerror}") from error
        if not log.n_lines:
            raise ValueError(f"FILE: {paths[0].name} is empty; copy it again")
        if not (log.family or log.compiles or log.errors or log.failures):
            raise ValueError(_refusal(paths[0].name, log))
        now = timezone.now()
        kept = save_log(log, about, file_s=file_s, now=now)
        raise_from_log(kept.run, now=now)
        return kept


def _refusal(name: str, log: Log) -> str:
    """Say what a log without any known line has, what it lacks, and how to import it."""
    text = f"FILE: {name} has no line of a known kind among {log.n_lines:,}"
    if not log.likely:
        first = "".join(f"\n  {line.number}: {line.text}" for line in log.others[:3])
        quoted = f". The first lines:{first}\ndocs/logs.md" if first else "; docs/logs.md"
        return f"{text}{quoted} lists the kinds, import_run takes a table of steps"
    lines = "".join(f"\n  {line.number}: {line.text}" for line in log.likely)
    lack = next((LACKS[name] for name in LACKS if name in log.lacks), LACKS[""])
    return f"{text}. These look like training:{lines}\n{lack}; docs/logs.md lists the kinds"


def utc_offset_s(options: dict[str, Any]) -> float:
    """Return the offset of times without a zone, in seconds."""
    offset: float = options["utc_offset"]
    if not abs(offset) <= FARTHEST_ZONE_HOURS:
        raise ValueError(f"--utc-offset: {offset:g} is out of range; give -14 to 14 hours")
    return offset * HOUR_S


def options_of(options: dict[str, Any]) -> LogOptions:
    name = Path(options["file"][0]).name
    return check_options(
        LogOptions(
            run=options["run"],
            file=name.encode("utf-8", "replace").decode(),
            model=options["model"],
            instance=options["instance"],
            n_nodes=options["nodes"],
            tp=options["tp"],
            pp=options["pp"],
            global_batch=options["global_batch"],
            seq_len=options["seq_len"],
            precision=options["precision"],
            optimizer=options["optimizer"],
            tokens_per_epoch=options["tokens_per_epoch"],
            team=options["team"],
            started_at=_moment(options["started_at"]),
        )
    )


def _moment(text: str) -> datetime | None:
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"--started-at: {text[:40]!r} is not a time; write it like 2026-05-01T12:00:00Z"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if not 2000 <= moment.year < 2200:
        raise ValueError(f"--started-at: {text[:40]!r} is out of range; give 2000 to 2199")
    return moment


def _unknown(options: dict[str, Any]) -> list[str]:
    """Warn of names that the catalog lacks."""
    warnings = []
    if (name := options["model"]) and name not in catalog.models():
        warnings.append(f"--model: {name} is not in the catalog; MFU is unknown")
    if (name := options["instance"]) and name not in catalog.instances():
        warnings.append(f"--instance: {name} is not in the catalog; cost is unknown")
    return warnings


def _answer(kept: ReadLog) -> dict[str, object]:
    """Return the object that docs/logs.md describes."""
    run, curves = kept.run, unpack_curves(bytes(kept.curves))
    is_table = kept.family == TABLE
    return {
        "run": run.name,
        "family": kept.family or None,
        "steps": kept.n_steps,
        "last_step": run.last_step if kept.n_steps else None,
        "step_s": median_of(curves["step_s"]),
        "seq_per_s": median_of(curves["seq_per_s"]),
        "tokens_per_s": median_of(curves["tokens_per_s"]),
        "tokens": run.n_tokens or None,
        "global_batch": run.global_batch or None,
        # JSON has no NaN: "NaN", "Infinity" or "-Infinity" for a loss that is not finite.
        "loss": last_of(kept, "loss", curves["loss"]),
        "started_at": run.started_at.isoformat(),
        "finished_at": run.finished_at.isoformat() if run.finished_at else None,
        "compile": None if is_table else compile_summary(run).as_json(),
        "hardware_errors": None if is_table else kept.details["n_errors"],
        "end": None if is_table else kept.details["end"],
        "errors": None if is_table else [_error(each) for each in kept.details["failures"]],
        "lines": kept.n_lines,
        "understood": kept.details["understood"],
        "skipped": {"other": kept.n_other, "damaged": kept.n_damaged},
        "examples": {kind: kept.details[kind] for kind in ("damaged", "others")},
    }


def _error(failure: dict[str, Any]) -> dict[str, Any]:
    names = ("name", "class", "line", "at", "rank", "device", "core", "node", "detail", "text")
    return {name: failure[name] for name in names}


def _rows(kept: ReadLog, answer: dict[str, Any]) -> list[tuple[str, str, str]]:
    compiles, n_again = answer["compile"], kept.details["n_again"]
    rows = [
        ("steps", f"{kept.n_steps:,}", f"{kept.family or 'no line of a step'}"),
        ("last step", _figure(answer["last_step"], ",.0f"), f"{n_again:,} trained again"),
        ("step", _figure(answer["step_s"], ",.3f", " s"), "median"),
        ("sequences", _figure(answer["seq_per_s"], ",.2f", "/s"), "median"),
        ("tokens", f"{si(answer['tokens_per_s'])}/s", f"{si(answer['tokens'])} in all"),
        ("loss", _figure(answer["loss"], ",.4g"), "last"),
        ("times", "", times_text(kept)),
    ]
    if compiles is not None:
        compiled_s = _figure(compiles["seconds"], ",.0f", " s")
        rows[-1:-1] = [
            ("graphs", f"{compiles['graphs']:,}", f"{compiles['cache'] or 'cache not named'}"),
            ("cache hits", f"{compiles['hits']:,}", ""),
            ("compiled", f"{compiles['misses']:,}", f"{compiled_s}, all processes"),
            ("failed", f"{compiles['failures']:,}", ""),
            ("hardware errors", f"{answer['hardware_errors']:,}", "annotated on the run"),
            ("end", "", answer["end"]),
        ]
    return rows


def _figure(value: float | str | None, how: str, unit: str = "") -> str:
    if isinstance(value, str):
        return value
    return "-" if value is None or math.isnan(value) else f"{value:{how}}{unit}"
