"""Steps of runs from elsewhere: rows of tables and exports, by the names of tables.toml."""

import math
import tomllib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from importers.exports import CHART, LAST_VALUES, FilePlace, TableError, entries_of
from importers.logs.families import record_of
from importers.logs.reading import TABLE, Log
from importers.logs.records import LogLine, TrainingTotals
from importers.logs.steps import forward
from telemetry.units import HOUR_S

MAX_STEP = 2_000_000_000
# Units of Unix times by their size: the first ones of a unit are of March 1973, and end the one
# before in the year 5138. MLflow writes milliseconds, pandas nanoseconds.
UNIX_UNITS = ((1e17, 1e9), (1e14, 1e6), (1e11, 1e3))
# Samples per step of a Hugging Face trainer follow from rounded rates.
WHOLE_BATCH_RATIO = 0.02
# So many values at one step are of a script that logs no step.
MANY_AT_ONE_STEP = 10
# A column of this name may count from the beginning of the run; Unix times are after 2000.
EITHER_TIME, SINCE_BEGINNING, EARLIEST_S = "time", "relative_time", 946_684_800.0
# Tokens that grow with the steps within this are those trained so far, in so many rows at least.
GROWING_RATIO, LEAST_GROWING = 0.01, 3
UNKNOWN = frozenset(("", "nan", "null", "none", "na", "n/a", "-"))
TABLES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _fields(names: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, int]]:
    """Return the field of each name, and how early the name is in the field's list."""
    fields = {
        name: (field, rank) for field, each in names.items() for rank, name in enumerate(each)
    }
    return {name.replace("/", "_"): known for name, known in fields.items()} | fields


TOTALS, ANYWHERE = _fields(TABLES["totals"]), frozenset(TABLES["anywhere"]["names"])
NAMES = {name: each for name, each in _fields(TABLES["names"]).items() if name not in TOTALS}
FIELD_OF = {name: field for name, (field, _) in NAMES.items()}
BOUNDS = {
    "step": (0.0, MAX_STEP),
    "at_s": (0.0, 1e20),
    "step_s": (0.0, 1e6),
    "step_ms": (0.0, 1e9),
    "steps_per_s": (0.0, 1e9),
    "tokens": (0.0, 1e15),
    "tokens_per_s": (0.0, 1e15),
    "seq_per_s": (0.0, 1e15),
    "global_batch": (0.0, 2e9),
}
KINDS = {"at_s": "time: write Unix seconds or ISO 8601"}
LIMITS = {
    "step": f"give a whole number from 0 to {MAX_STEP:,}",
    "step_s": "give seconds from 0 to 1,000,000",
    "tokens": "give the tokens of one step, 0 or more",
}
# What may be NaN or infinite in a step that was trained.
NOT_FINITE = {"loss", "grad_norm"}
BY_SAMPLES = tuple(TABLES["by_samples"]["begin"])
# What places a row, and what gives a step its duration.
ELAPSED = {"elapsed_s", "elapsed_h"}
# Durations fall at half of their steps, a clock only where a job starts again.
DURATION_FALLS = 0.25
PLACING = ELAPSED | {"at_s"}
TIMING = PLACING | {"step_s", "step_ms", "steps_per_s", "tokens_per_s", "seq_per_s"}
Row = dict[str, float]


def read_tables(
    files: Sequence[tuple[str | None, Path]],
    *,
    utc_offset_s: float = 0.0,
    run: str = "",
    step_s: float = math.nan,
    began_s: float = math.nan,
) -> Log:
    """Read the tables of one run as one log.

    Parameters
    ----------
    files : metric of a table of single values (as TensorBoard's), and path
    utc_offset_s : for times without a zone
    run : which run, if an export has several
    step_s : seconds of a step, for tables that have neither times nor durations
    began_s : Unix seconds from which elapsed times count; NaN: they end at the file's change

    Raises
    ------
    TableError
        With file, line and column of the first invalid cell.
    """
    reader = TableReader(utc_offset_s=utc_offset_s, run=run)
    for name, path in files:
        reader.read(path, name)
    log, steps = reader.log, reader.steps()
    changed_s = max(path.stat().st_mtime for _, path in files)
    reader.add_times(steps, step_s=step_s, began_s=began_s, changed_s=changed_s)
    for number in sorted(steps):
        figures = {name: repr(value) for name, value in steps[number].items()}
        at_s = steps[number].get("at_s", math.nan)
        log.gathered[TABLE].add(record_of(figures, number, LogLine(0, "", at_s)))
    log.understood[TABLE] = log.n_lines
    if reader.left_out:
        log.notes.append("columns left out: " + ", ".join(sorted(reader.left_out))[:200])
    return log


class TableReader:
    """Gathers the rows of the files of one run, by column, and joins them to steps."""

    def __init__(self, *, utc_offset_s: float = 0.0, run: str = "") -> None:
        self.log = Log()
        self.left_out = set[str]()
        self._utc_offset_s = utc_offset_s
        self._run = run
        self._rows: list[tuple[int, Row, bool]] = []
        self._totals = Row()
        self._kind, self._file = "", ""

    def read(self, path: Path, name: str | None) -> None:
        """Read one file; raises TableError if a cell is invalid, or if it has no step."""
        rows: list[tuple[FilePlace, Row, bool]] = []
        columns = dict[str, str]()
        nan_is_missing = False
        for where, cells in entries_of(path, name, run=self._run):
            row, others = Row(), False
            for column, cell in cells.items():
                key = column.strip().casefold()
                columns.setdefault(key, column)
                field = FIELD_OF.get(key)
                nan_is_missing |= field not in NOT_FINITE and str(cell).casefold() == "nan"
                if known := NAMES.get(key) or TOTALS.get(key):
                    value = _figure(cell, known[0], column, where, self._utc_offset_s)
                    if key == EITHER_TIME and value is not None and value < EARLIEST_S:
                        key = SINCE_BEGINNING
                    row |= {} if value is None else {key: value}
                elif key not in ANYWHERE:
                    others = others or str(cell).strip().casefold() not in UNKNOWN
            rows.append((where, row, others))
            self._totals |= {TOTALS[key][0]: row.pop(key) for key in TOTALS if key in row}
            self._kind, self._file = where.kind, path.name
        if not rows:
            raise TableError(f"{path.name}: has no row; export it again")
        if nan_is_missing:
            # pandas writes what a row lacks so.
            rows = [
                (
                    where,
                    {key: value for key, value in row.items() if not math.isnan(value)},
                    others,
                )
                for where, row, others in rows
            ]
        self.left_out |= {
            columns[key] for key in columns.keys() - NAMES.keys() - TOTALS.keys() if key
        }
        self.log.n_lines += len(rows)
        self._rows += self._numbered(rows, columns)

    def _numbered(
        self, rows: Sequence[tuple[FilePlace, Row, bool]], columns: Mapping[str, str]
    ) -> list[tuple[int, Row, bool]]:
        """Return the rows of one file with their steps, by the preferred column that has them."""
        known = {key for _, row, _ in rows for key in row}
        steps = [key for key in columns if FIELD_OF.get(key) == "step"]
        steps.sort(key=lambda key: (key not in known, NAMES[key][1]))
        if not steps and self._totals:
            return []
        if not steps:
            if any(key.startswith("metrics.") for key in columns):
                raise TableError(f"{self._file}: {LAST_VALUES}")
            shown = ", ".join(columns.values())[:120]
            fix = "; export the chart with train/global_step or Step on its x axis"
            raise TableError(
                f"{self._file}: line 1: has no column 'step'; it has {shown}"
                f"{fix if self._kind == CHART else ''}"
            )
        unknown = [
            name for key, name in columns.items() if key not in NAMES.keys() | TOTALS.keys()
        ]
        if counted := [name for name in unknown if name.casefold().startswith(BY_SAMPLES)]:
            raise TableError(
                f"{self._file}: column {counted[0]!r} is of DeepSpeed's monitor, whose {steps[0]} "
                "counts samples, and it has no column of times (ended_at, step_s); import the "
                "job's log by import_log, or a table with both"
            )
        if len(steps) > 1:
            unused = ", ".join(columns[key] for key in steps[1:])
            self.log.notes.append(f"steps are numbered by {columns[steps[0]]}, not by {unused}")
        elif self._kind == CHART and steps[0] in ("step", "_step"):
            self.log.notes.append(
                "steps are numbered by the calls of W&B's log; for the trainer's steps export the "
                "chart with train/global_step on its x axis"
            )
        numbered = []
        for where, row, others in rows:
            if steps[0] in row:
                number = int(row[steps[0]])
                for key in row.keys() & steps:
                    del row[key]
                numbered.append((number, row, others))
            elif len(steps) == 1 and any(FIELD_OF[key] not in PLACING for key in row):
                raise where.refuse("step", "is missing; each row needs its step number")
        return numbered

    def steps(self) -> dict[int, Row]:
        """Return the figures of each step; of several columns of one field the preferred one."""
        seen = {column for _, row, _ in self._rows for column in row}
        used: dict[str, str] = {}
        for column in sorted(seen, key=lambda each: NAMES[each][1]):
            first = used.setdefault(FIELD_OF[column], column)
            if first != column and FIELD_OF[column] not in PLACING:
                self.log.notes.append(f"{first} is used, {column} is not")
        figures = {column for field, column in used.items() if field not in PLACING}
        # Evaluations have a step and a time, too.
        has_figures = any(not others or row.keys() & figures for _, row, others in self._rows)
        steps: dict[int, Row] = {}
        for number, cells, others in self._rows:
            if has_figures and others and not cells.keys() & figures:
                continue
            row = {
                FIELD_OF[name]: value
                for name, value in cells.items()
                if name in figures or FIELD_OF[name] in PLACING
            }
            known = steps.get(number, {})
            if known and all(repr(known.get(name)) == repr(value) for name, value in row.items()):
                continue  # The same row again.
            is_retrained = bool(known.keys() & row.keys() - PLACING)
            self.log.gathered[TABLE].n_retrained += is_retrained
            # The figures of one step come one after the other: its first time counts.
            steps[number] = row if is_retrained else row | known
        if not steps:
            raise TableError(
                f"{self._file}: has totals of a run and no steps; give trainer_state.json, too"
            )
        if len(steps) == 1 and len(self._rows) > MANY_AT_ONE_STEP:
            reason = f"has {len(self._rows):,} values, all of step {next(iter(steps))}"
            raise TableError(f"{self._file}: {reason}; log each with its step")
        return steps

    def add_times(
        self, steps: dict[int, Row], *, step_s: float, began_s: float, changed_s: float
    ) -> None:
        """Place steps by elapsed time; without any time, use the mean of the run."""
        self._tell_totals(steps)
        fields, last = {field for row in steps.values() for field in row}, max(steps)
        runtime_s = self._totals.get("runtime_s", math.nan)
        batch = self._totals.get("seq_per_s", math.nan) * runtime_s / max(1, last)
        if batch >= 1 and abs(batch - round(batch)) <= WHOLE_BATCH_RATIO * batch:
            self.log.totals = TrainingTotals(global_batch=round(batch))
        if fields & TIMING and not math.isnan(step_s):
            self.log.notes.append("--step-s is not used: the export has times")
        if fields & ELAPSED and "at_s" not in fields:
            elapsed = {
                number: row.get("elapsed_s", row.get("elapsed_h", math.nan) * HOUR_S)
                for number, row in steps.items()
            }
            numbers = sorted(elapsed)
            passed = np.array([elapsed[n] for n in numbers])
            n_falls = int((np.diff(passed) < 0).sum())
            if n_falls > DURATION_FALLS * len(numbers):
                raise TableError(
                    f"{self._file}: its elapsed time falls at {n_falls:,} of {len(numbers):,} "
                    "steps; name the column step_time if it is the duration of each step"
                )
            if math.isnan(began_s):
                clock_s, _ = forward(passed, np.array(numbers))
                began_s = changed_s - float(np.nanmax(clock_s))
                self.log.notes.append(
                    "steps are placed back from the file's last change; give --started-at"
                )
            for number, passed_s in elapsed.items():
                steps[number] |= {"at_s": began_s + passed_s} if passed_s >= 0 else {}
        for row in steps.values():
            for field in ELAPSED & row.keys():
                del row[field]
        if fields & TIMING:
            return
        if math.isnan(step_s) and not math.isnan(runtime_s):
            step_s = runtime_s / max(1, last)
            self.log.notes.append(
                "each step has the mean of train_runtime, evaluations and checkpoints included"
            )
        if math.isnan(step_s):
            unknown = ", ".join(sorted(self.left_out))[:120]
            read = ", ".join(sorted(fields)) or f"no figure that is known (but {unknown})"
            raise TableError(
                f"{self._file}: has {read}, but no times of its steps; "
                f"{TABLES['untimed'][self._kind]}, or give --step-s, the seconds of a step"
            )
        for row in steps.values():
            row["step_s"] = step_s

    def _tell_totals(self, steps: dict[int, Row]) -> None:
        """Move tokens that count from the beginning to the field for these."""
        each = [row["tokens"] / n for n, row in steps.items() if n and row.get("tokens")]
        if len(each) < LEAST_GROWING or max(each) - min(each) > GROWING_RATIO * min(each):
            return
        self.log.notes.append("tokens grow with the steps: they are those trained so far")
        for row in steps.values():
            if "tokens" in row:
                row.setdefault("consumed_tokens", row["tokens"])
                del row["tokens"]


def _figure(
    cell: object, name: str, column: str, where: FilePlace, utc_offset_s: float
) -> float | None:
    text = "" if cell is None else str(cell).strip()
    if text.casefold() in UNKNOWN and not (name in NOT_FINITE and text.casefold() == "nan"):
        return None
    value = _moment(text, utc_offset_s) if name == "at_s" else _number(text)
    if value is None:
        raise where.refuse(column, f"{text[:40]!r} is not a {KINDS.get(name, 'number')}")
    if not math.isfinite(value):
        return value if name in NOT_FINITE else None
    low, high = BOUNDS.get(name, (-math.inf, math.inf))
    if not low <= value <= high or (name == "step" and value != int(value)):
        raise where.refuse(column, f"{text[:40]} is out of range; {LIMITS.get(name, 'check it')}")
    if name != "at_s":
        return value
    return next((value / unit for least, unit in UNIX_UNITS if value >= least), value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _moment(text: str, utc_offset_s: float) -> float | None:
    """Parse a time: a number unchanged, ISO 8601 as Unix seconds; None if invalid."""
    number = _number(text)
    if number is not None:
        return number
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is not None:
        return moment.timestamp()
    return moment.replace(tzinfo=UTC).timestamp() - utc_offset_s
