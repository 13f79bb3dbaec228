"""Steps from tables: our own CSV, and exports of TensorBoard, Weights & Biases and MLflow."""

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from telemetry.ingest.logs.reading import TABLE, Log
from telemetry.ingest.logs.records import StepRecord

MAX_BYTES = 512 * 2**20
MAX_STEP = 2_000_000_000
# Numbers from here on are Unix milliseconds, as MLflow exports them.
MILLISECONDS_FROM = 1e11
MS = 1e3
UNKNOWN = frozenset(("", "nan", "null", "none", "na", "n/a", "-"))
# Our name, then the names that trackers and trainers use.
NAMES: Mapping[str, tuple[str, ...]] = {
    "step": ("_step", "global_step", "train/global_step", "iteration"),
    "at_s": ("ended_at", "_timestamp", "timestamp", "wall time", "wall_time"),
    "step_s": ("step_time", "train/step_time", "step_time_s"),
    "tokens": ("step_tokens",),
    "tokens_per_s": ("train/tokens_per_sec", "tokens_per_sec", "tokens/s"),
    "loss": ("train/loss", "train_loss", "lm loss", "training_loss"),
    "grad_norm": ("train/grad_norm", "grad norm"),
    "learning_rate": ("train/learning_rate", "lr", "learning rate"),
    "global_batch": (),
}
FIELD_OF = {name: field for field, names in NAMES.items() for name in (field, *names)}
BOUNDS = {
    "step": (0.0, MAX_STEP),
    "at_s": (0.0, 1e14),
    "step_s": (0.0, 1e6),
    "tokens": (0.0, 1e15),
    "tokens_per_s": (0.0, 1e15),
    "global_batch": (0.0, 2e9),
}
Row = dict[str, float]

KINDS = {"at_s": "time: write Unix seconds or ISO 8601"}
LIMITS = {
    "step": f"give a whole number from 0 to {MAX_STEP:,}",
    "step_s": "give seconds from 0 to 1,000,000",
    "tokens": "give the tokens of one step, 0 or more",
}


class TableError(ValueError):
    """An invalid cell or file; the message names the place and the fix."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    file: str
    line: int

    def refuse(self, column: str, reason: str) -> TableError:
        return TableError(f"{self.file}: line {self.line}, column {column!r}: {reason}")


def read_tables(files: Sequence[tuple[str, Path]], *, utc_offset_s: float = 0.0) -> Log:
    """Read the tables of one run as one log.

    Parameters
    ----------
    files : metric of a table of single values (as TensorBoard's), and path
    utc_offset_s : for times without a zone

    Raises
    ------
    TableError
        With file, line and column of the first invalid cell.
    """
    log, ignored = Log(), set[str]()
    steps: dict[int, Row] = {}
    for field, path in files:
        if path.stat().st_size > MAX_BYTES:
            raise TableError(f"{path.name}: is larger than {MAX_BYTES // 2**20} MiB; split it")
        try:
            text = path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise TableError(
                f"{path.name}: is not UTF-8 text; export it as CSV or JSON"
            ) from error
        read_rows = _json_rows if text.lstrip()[:1] in ("{", "[") else _csv_rows
        for where, cells in read_rows(path.name, text, field):
            row: Row = {}
            for column, cell in cells.items():
                name = FIELD_OF.get(column.strip().casefold())
                if name is None:
                    ignored.add(column)
                elif (value := _figure(cell, name, column, where, utc_offset_s)) is not None:
                    row[name] = value
            if "step" not in row:
                raise where.refuse("step", "is missing; each row needs its step number")
            log.n_lines += 1
            steps.setdefault(int(row["step"]), {}).update(row)
    for number in sorted(steps):
        fields = {name: value for name, value in steps[number].items() if name != "step"}
        log.gathered[TABLE].add(StepRecord(number, **fields))
    log.understood[TABLE] = log.n_lines
    if ignored:
        log.understood["columns left out: " + ", ".join(sorted(ignored))[:200]] = len(ignored)
    return log


def _csv_rows(file: str, text: str, field: str) -> Iterator[tuple[FilePlace, dict[str, Any]]]:
    """Yield a CSV's cells by column; TensorBoard's ``Value`` is ``field``."""
    lines = csv.reader(text.splitlines())
    head = next(lines, [])
    columns = [field if name.strip().casefold() == "value" else name for name in head]
    known = [FIELD_OF.get(name.strip().casefold()) for name in columns]
    if "step" not in known:
        raise TableError(f"{file}: line 1: has no column 'step'; it has {', '.join(head)[:120]}")
    named_columns = [name for name in known if name is not None]
    if len(set(named_columns)) < len(named_columns):
        twice = next(name for name in named_columns if named_columns.count(name) > 1)
        raise TableError(f"{file}: line 1: two columns have {twice}; remove one of them")
    for cells in lines:
        where = FilePlace(file, lines.line_num)
        if len(cells) > len(columns) or (cells and len(cells) < len(columns)):
            raise where.refuse(
                columns[min(len(cells), len(columns)) - 1],
                f"has {len(cells)} cells; the header has {len(columns)}",
            )
        if cells:
            yield where, dict(zip(columns, cells, strict=True))


def _json_rows(file: str, text: str, field: str) -> Iterator[tuple[FilePlace, dict[str, Any]]]:
    """Yield the entries of MLflow's metric history, TensorBoard's triples, or plain objects."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TableError(f"{file}: is not complete JSON: {error}") from error
    entries = document.get("metrics") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise TableError(f"{file}: has no list of entries; docs/trials.md names the formats")
    for number, entry in enumerate(entries, 1):
        where = FilePlace(file, number)
        if isinstance(entry, list) and len(entry) == 3:
            yield where, dict(zip(("wall_time", "step", field), entry, strict=True))
        elif isinstance(entry, dict) and {"key", "value"} <= entry.keys():
            rest = {name: entry.get(name) for name in ("step", "timestamp")}
            yield where, rest | {str(entry["key"]): entry["value"]}
        elif isinstance(entry, dict):
            yield where, entry
        else:
            raise where.refuse("entry", "is neither an object nor [wall time, step, value]")


def _figure(
    cell: object, name: str, column: str, where: FilePlace, utc_offset_s: float
) -> float | None:
    text = "" if cell is None else str(cell).strip()
    if text.casefold() in UNKNOWN:
        return None
    value = _moment(text, utc_offset_s) if name == "at_s" else _number(text)
    if value is None:
        raise where.refuse(column, f"{text[:40]!r} is not a {KINDS.get(name, 'number')}")
    if not math.isfinite(value):
        return None
    low, high = BOUNDS.get(name, (-math.inf, math.inf))
    if not low <= value <= high or (name == "step" and value != int(value)):
        raise where.refuse(column, f"{text[:40]} is out of range; {LIMITS.get(name, 'check it')}")
    return value / MS if name == "at_s" and value >= MILLISECONDS_FROM else value


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
