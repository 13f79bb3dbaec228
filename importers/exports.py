"""Files of trackers and trainers as rows of cells: CSV, JSON, Parquet, MLflow, TensorBoard."""

import csv
import json
import lzma
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from google.protobuf.message import DecodeError

from importers.logs.envelopes import opened
from importers.text import strict_json
from telemetry.write_request import message_classes

MAX_BYTES = 512 * 2**20
PARQUET = b"PAR1"
# W&B's export of a chart has a column "run - metric" for each line, and its extremes.
IN_CHART = " - "
EXTREMES = ("__MIN", "__MAX")
DELIMITERS = (",", ";", "\t")
# MLflow's file of a metric: Unix milliseconds, value, step.
POINT = re.compile(r"(\d{10,16}) (\S{1,40})(?: (-?\d{1,19}))?(?: .*)?", re.ASCII)
# TensorBoard downloads the scalars of one tag.
DOWNLOAD = re.compile(r"run-.*-tag-(.+)\.(?:csv|json)", re.IGNORECASE)
# Rows of one value each: the columns of its name and of the value. MLflow, Comet, Neptune, and
# readers of TensorBoard's events write them.
LONG = (
    ("key", "value"),
    ("metricName", "metricValue"),
    ("attribute_path", "float_value"),
    ("attribute_path", "value"),
    ("metric", "value"),
    ("tag", "value"),
)
PLACES = frozenset(("step", "timestamp", "wall_time", "wall time", "time"))
RUN_IDS = ("run_id", "experimentKey", "experiment_key", "custom_run_id", "run", "Run", "Name")
RECORD_HEAD, RECORD_TAIL = struct.Struct("<QI"), 4
FLOAT, DOUBLE = 1, 2
# What is read of the messages of TensorBoard's files.
Event: Any = message_classes(
    "tensorboard",
    {
        "Event": ((1, "wall_time", "double"), (2, "step", "int64"), (5, "summary", "Summary")),
        "Summary": ((1, "value", "Value"),),
        "Value": ((1, "tag", "string"), (2, "simple_value", "float"), (8, "tensor", "Tensor")),
        "Tensor": (
            *((1, "dtype", "int32"), (2, "tensor_shape", "bytes"), (4, "tensor_content", "bytes")),
            *((5, "float_val", "repeated float"), (6, "double_val", "repeated double")),
        ),
    },
    syntax="proto2",
)["Event"]
CHART, TRAINER, OTHER = "chart", "trainer", "table"
LAST_VALUES = (
    "has the last value of each metric only; export the history of each: "
    "/api/2.0/mlflow/metrics/get-history, or the folder of the run in mlruns"
)
Cells = dict[str, Any]


class TableError(ValueError):
    """An invalid cell or file; the message names the place and the fix."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    file: str
    line: int
    kind: str = OTHER

    def refuse(self, column: str, reason: str) -> TableError:
        return TableError(f"{self.file}: line {self.line}, column {column!r}: {reason}")


Entries = Iterator[tuple[FilePlace, Cells]]


def files_of(path: Path) -> list[Path]:
    """Return the files of one run in a folder of MLflow, TensorBoard or a Hugging Face trainer."""
    if not path.is_dir():
        return [path]
    metrics = path if path.name == "metrics" else path / "metrics"
    if metrics.is_dir():
        return sorted(each for each in metrics.rglob("*") if each.is_file())
    if (path / "trainer_state.json").is_file():
        names = ("trainer_state.json", "train_results.json", "all_results.json")
        return [path / name for name in names if (path / name).is_file()]
    events = sorted(path.rglob("*tfevents*"))
    folders = sorted({str(event.parent.relative_to(path)) for event in events})
    if len(folders) > 1:
        raise TableError(
            f"{path.name}: has the events of {len(folders)} runs: {', '.join(folders)[:200]}; "
            "give one of these folders"
        )
    if not events:
        raise TableError(
            f"{path.name}: has neither metrics of MLflow, nor events of TensorBoard, nor "
            "trainer_state.json; give the export itself"
        )
    return events


def entries_of(path: Path, name: str | None, *, run: str = "") -> Entries:
    """Yield the rows of one file; raises TableError if it is of another kind.

    Parameters
    ----------
    name : the metric of a file of single values; None: what its name says, or the loss
    run : which run, if the export has several
    """
    if path.stat().st_size > MAX_BYTES:
        raise TableError(f"{path.name}: is larger than {MAX_BYTES // 2**20} MiB; split it")
    if "tfevents" in path.name:
        return _event_entries(path.name, path.read_bytes())
    with path.open("rb") as file:
        if file.read(4) == PARQUET:
            return _runs(path.name, _parquet_entries(path), run)
    text = _text_of(path)
    if POINT.fullmatch(text.partition("\n")[0].strip()):
        return _metric_entries(path, text, name)
    tag = DOWNLOAD.fullmatch(path.name)
    single = name or (tag[1] if tag else "loss")
    if text.lstrip()[:1] in ("{", "["):
        return _runs(path.name, _json_entries(path.name, text, single), run)
    return _runs(path.name, _csv_entries(path.name, text, name, single, run), run)


def _text_of(path: Path) -> str:
    """Return the text of a file in any encoding, compressed or not."""
    try:
        with opened(path) as file:
            data = file.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise TableError(f"{path.name}: is truncated ({error}); copy it again") from error
    if len(data) > MAX_BYTES:
        raise TableError(f"{path.name}: is larger than {MAX_BYTES // 2**20} MiB; split it")
    is_wandb = path.suffix == ".wandb"
    if is_wandb or b"\0" in data:
        fix = (
            "sync it, and write run.history() to a CSV" if is_wandb else "export it as CSV or JSON"
        )
        raise TableError(f"{path.name}: is not UTF-8 text; {fix}")
    return data.decode("utf-8-sig", "replace")


def _runs(file: str, entries: Entries, run: str) -> Entries:
    """Put rows of one value each in columns; choose one run of several."""
    runs = set[str]()
    for where, cells in entries:
        if other := next(filter(None, (str(cells.pop(name, "") or "") for name in RUN_IDS)), ""):
            runs.add(other)
            if run and other != run:
                continue
        if not run and len(runs) > 1:
            raise TableError(_several(file, runs))
        long = next(((name, value) for name, value in LONG if {name, value} <= cells.keys()), None)
        if long is not None and "loss" not in cells:
            placed = {name: cells[name] for name in cells if name.casefold() in PLACES}
            yield where, placed | {str(cells[long[0]]): cells[long[1]]}
        else:
            yield where, cells
    if run and runs and run not in runs:
        raise TableError(_several(file, runs))


def _several(file: str, runs: Iterable[str]) -> str:
    names = sorted(runs)
    return f"{file}: is of {len(names)} runs: {', '.join(names)[:200]}; choose one by --export-run"


def _csv_entries(file: str, text: str, name: str | None, single: str, run: str) -> Entries:
    rows = text.splitlines()
    # Spreadsheets write tabs, and semicolons where a comma is the decimal point.
    delimiter = max(DELIMITERS, key=(rows[0] if rows else "").count)
    lines = csv.reader(rows, delimiter=delimiter)

    def points(cell: str) -> str:
        return cell.replace(",", ".") if delimiter == ";" else cell

    try:
        head = [column.strip() for column in next(lines, [])]
        names = _chart_columns(file, head, run)
        is_chart = names != dict(enumerate(head))
        for place, column in names.items():
            if column.casefold() == "value" and not any(name in head for name, _ in LONG):
                names[place] = single
        if is_chart and name and len(names) == 2:
            names[max(names)] = name
        for cells in lines:
            where = FilePlace(file, lines.line_num, CHART if is_chart else OTHER)
            if cells and len(cells) != len(head):
                raise where.refuse(
                    head[min(len(cells), len(head)) - 1] if head else "",
                    f"has {len(cells)} cells; the header has {len(head)}",
                )
            if cells:
                yield where, {column: points(cells[place]) for place, column in names.items()}
    except csv.Error as error:
        raise TableError(f"{file}: line {lines.line_num}: {error}; export it again") from error


def _chart_columns(file: str, head: list[str], run: str) -> dict[int, str]:
    """Return the metric of each column by its place; of a chart, those of one run."""
    extremes = [name for name in head if name.endswith(EXTREMES) and name[:-5] in head]
    # Without extremes, each line has its run, and the first column is the axis.
    is_chart = len(head) > 1 and IN_CHART not in head[0] and all(IN_CHART in x for x in head[1:])
    if not extremes and not is_chart:
        return dict(enumerate(head))
    metrics = {
        place: name.rpartition(IN_CHART) for place, name in enumerate(head) if name not in extremes
    }
    runs = {before for before, dash, _ in metrics.values() if dash}
    if (len(runs) > 1 and not run) or (run and run not in runs):
        raise TableError(_several(file, runs))
    wanted = {run} if run else runs
    return {place: each[2] for place, each in metrics.items() if each[0] in wanted or not each[1]}


def _json_entries(file: str, text: str, single: str) -> Entries:
    """Yield rows of a list, of columns, or of one document on each line."""
    try:
        document: Any = json.loads(text, strict=False)
    except RecursionError as error:
        raise TableError(f"{file}: is nested too deeply; export it again") from error
    except ValueError as error:
        try:
            document = _lenient_json(text)
        except (ValueError, RecursionError):
            raise TableError(f"{file}: is not complete JSON: {error}") from error
    kind = OTHER
    if isinstance(document, dict):
        kind = TRAINER if "log_history" in document or "train_runtime" in document else OTHER
        if document.keys() & {"runs", "run"}:
            raise TableError(f"{file}: {LAST_VALUES}")
        document = _rows_of(document)
    if not isinstance(document, list):
        raise TableError(f"{file}: has no list of entries; docs/trials.md names the formats")
    for number, entry in enumerate(document, 1):
        where = FilePlace(file, number, kind)
        if isinstance(entry, list) and len(entry) == 3:
            yield where, dict(zip(("wall time", "step", single), entry, strict=True))
        elif isinstance(entry, dict):
            yield where, entry
        else:
            raise where.refuse("entry", "is neither an object nor [wall time, step, value]")


def _lenient_json(text: str) -> Any:
    """Decode JSON lines, or a document with bare inf or nan."""
    mended = strict_json(text.encode(), not_finite=b"NaN").decode()
    try:
        return json.loads(mended)
    except ValueError:
        return [json.loads(line) for line in mended.split("\n") if line.strip()]


def _rows_of(document: Mapping[str, Any]) -> object:
    """Return the list in a document; pandas writes columns, trainers a single object."""
    for key in ("log_history", "metrics", "history"):
        if key in document:
            return document[key]
    columns = [[*each.values()] if isinstance(each, dict) else each for each in document.values()]
    if columns and all(isinstance(column, list) for column in columns):
        if len({len(column) for column in columns}) == 1:
            return [dict(zip(document, row, strict=True)) for row in zip(*columns, strict=True)]
        return None
    return [document] if "train_runtime" in document else None


def _parquet_entries(path: Path) -> Entries:
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"{path.name}: is not complete Parquet: {error}") from error
    plain = [field.name for field in table.schema if not pa.types.is_nested(field.type)]
    for batch in table.select(plain).to_batches():
        for number, cells in enumerate(batch.to_pylist(), 1):
            yield FilePlace(path.name, number), cells


def _metric_entries(path: Path, text: str, name: str | None) -> Entries:
    """Yield the points of one metric in MLflow's folder of a run."""
    parts = path.parts
    after = len(parts) - parts[::-1].index("metrics") if "metrics" in parts else len(parts) - 1
    metric = name or "/".join(parts[after:])
    for number, line in enumerate(text.splitlines(), 1):
        where, point = FilePlace(path.name, number), POINT.fullmatch(line.strip())
        if point is None or point[3] is None:
            raise where.refuse(metric, "is not `milliseconds value step`; MLflow 1.0 and later")
        yield where, {"timestamp": point[1], metric: point[2], "step": point[3]}


def _event_entries(file: str, data: bytes) -> Entries:
    """Yield the scalars of a TensorBoard file: TFRecords with the message Event.

    Each record is its length (8 bytes), a checksum (4), the message, and a checksum (4). A file
    that is still being written may end within a record.
    """
    place, number = 0, 0
    while place + RECORD_HEAD.size + RECORD_TAIL <= len(data):
        length, _ = RECORD_HEAD.unpack_from(data, place)
        start, number = place + RECORD_HEAD.size, number + 1
        place = start + length + RECORD_TAIL
        if place > len(data):
            break
        where = FilePlace(file, number)
        try:
            event = Event.FromString(data[start : start + length])
        except DecodeError as error:
            reason = f"{file}: record {number} is damaged; copy the file again"
            raise TableError(reason) from error
        for value in (value for summary in event.summary for value in summary.value):
            figure = _scalar(value)
            if value.tag and figure is not None:
                yield where, {"wall time": event.wall_time, "step": event.step, value.tag: figure}


def _scalar(value: Any) -> float | None:
    """Return the number of a Summary.Value; None if it is an image, a text or the like."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    for tensor in value.tensor[-1:]:
        kinds = {FLOAT: (tensor.float_val, "<f"), DOUBLE: (tensor.double_val, "<d")}
        known, form = kinds.get(tensor.dtype, ((), ""))
        content = tensor.tensor_content
        if form and not known and len(content) == struct.calcsize(form):
            known = struct.unpack(form, content)
        if len(known) == 1 and not tensor.tensor_shape:
            return float(known[0])
    return None
