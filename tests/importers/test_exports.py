"""Exports of trackers and trainers in their public formats, with figures of our own."""

import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from importers.exports import TableError, files_of
from importers.logs import Log, complete_steps
from importers.tables import read_tables

BEGAN_S = 1793491200.0
NAN = float("nan")


def history(n: int = 4) -> list[dict[str, object]]:
    """Write W&B's history of a Hugging Face trainer that logs every tenth step, and evaluates."""
    rows: list[dict[str, object]] = []
    rows += [{"_step": 0, "_timestamp": BEGAN_S, "eval/loss": 9.9, "train/global_step": 0}]
    for i in range(1, n + 1):
        placed: dict[str, object] = {"_step": len(rows), "_runtime": 30.0 * i}
        placed |= {"_timestamp": BEGAN_S + 30.0 * i}
        trained = {"train/loss": 9.0 - i, "train/grad_norm": 1.25, "train/learning_rate": 3e-4}
        rows.append(placed | trained | {"train/global_step": 10 * i, "train/epoch": 0.1 * i})
        placed = {"_step": len(rows), "_runtime": 30.0 * i + 4, "_timestamp": BEGAN_S + 30 * i + 4}
        rows.append(placed | {"eval/loss": 9.5 - i, "train/global_step": 10 * i})
    return [*rows, {"_step": len(rows), "_timestamp": BEGAN_S + 130, "gpu/0/temp": 40}]


def csv_of(rows: Iterable[dict[str, object]]) -> str:
    """Write a CSV as pandas does: its index first, nothing where a row lacks a column."""
    rows = list(rows)
    columns = [*dict.fromkeys(name for row in rows for name in row)]
    lines = [",".join(["", *columns])]
    lines += [
        ",".join([str(i), *(str(row.get(name, "")) for name in columns)])
        for i, row in enumerate(rows)
    ]
    return "\n".join(lines) + "\n"


def chart(
    metric: str, *values: float, x: str = "Step", runs: tuple[str, ...] = ("llama-1",)
) -> str:
    """Write what W&B's chart exports for each run: a line, and its extremes."""
    names = [f"{run} - {metric}{end}" for run in runs for end in ("", "__MIN", "__MAX")]
    lines = [",".join(f'"{name}"' for name in (x, *names))]
    lines += [
        ",".join(f'"{value}"' for value in (10 * i, *[value] * len(names)))
        for i, value in enumerate(values, 1)
    ]
    return "\n".join(lines) + "\n"


STEPS: list[dict[str, float]] = [
    *(
        {
            "epoch": i / 10,
            "grad_norm": 1.5,
            "learning_rate": 1e-4,
            "loss": 5.0 - i,
            "step": 10 * i,
        }
        for i in (1, 2, 3)
    ),
    {"epoch": 3.0, "eval_loss": 2.5, "eval_runtime": 1.0, "step": 30},
]
STATE = {
    "epoch": 3.0,
    "global_step": 30,
    "log_history": STEPS,
    "logging_steps": 10,
    "max_steps": 30,
    "num_input_tokens_seen": 0,
    "train_batch_size": 2,
}
RESULTS = {
    "epoch": 3.0,
    "total_flos": 1e15,
    "train_loss": 3.0,
    "train_runtime": 60.0,
    "train_samples_per_second": 7.99,
    "train_steps_per_second": 0.5,
}


def field(number: int, kind: int, value: bytes) -> bytes:
    size = bytes([len(value)]) if kind == 2 else b""
    return bytes([number << 3 | kind]) + size + value


def event(step: int, tag: str, value: float, *, as_tensor: bool = False) -> bytes:
    """Write a record of TensorBoard: a scalar as SummaryWriter writes it, old or new."""
    figure = field(2, 5, struct.pack("<f", value))
    if as_tensor:
        tensor = field(1, 0, b"\x01") + field(2, 2, b"") + field(5, 2, struct.pack("<f", value))
        figure = field(8, 2, tensor) + field(9, 2, field(1, 2, field(1, 2, b"scalars")))
    summary = field(1, 2, field(1, 2, tag.encode()) + figure)
    at_s = field(1, 1, struct.pack("<d", BEGAN_S + 3.0 * step))
    return record(at_s + field(2, 0, bytes([step])) + field(5, 2, summary))


def record(message: bytes) -> bytes:
    return struct.pack("<QI", len(message), 0) + message + bytes(4)


VERSION = record(field(1, 1, struct.pack("<d", BEGAN_S)) + field(3, 2, b"brain.Event:2"))
EVENTS = b"".join(
    [
        VERSION,
        *(event(i, "train/loss", 9.0 - i, as_tensor=i == 2) for i in (1, 2, 3)),
        *(event(i, "lr", 0.25, as_tensor=True) for i in (1, 2, 3)),
        event(3, "eval/loss", 7.0),
        record(
            field(1, 1, struct.pack("<d", BEGAN_S))
            + field(5, 2, field(1, 2, field(1, 2, b"text") + field(8, 2, field(1, 0, b"\x07"))))
        ),
    ]
)


@dataclass(frozen=True)
class Sample:
    """Files of an export by their paths, and what they say of the last step."""

    files: dict[str, str | bytes]
    step: tuple[int, ...]
    step_s: float
    loss: float = NAN
    at_s: float = NAN
    batch: float = NAN
    tokens: float = NAN
    names: tuple[str | None, ...] = ()
    notes: tuple[str, ...] = ()
    run: str = ""


GLOBAL_STEP = "steps are numbered by train/global_step, not by _step"
MEAN = "each step has the mean of train_runtime"
METRICS = "mlruns/0/4f1c/metrics"
SAMPLES = {
    "W&B history as CSV": Sample(
        {"history.csv": csv_of(history())},
        step=(10, 20, 30, 40),
        step_s=3.0,
        loss=5.0,
        at_s=BEGAN_S + 120,
        notes=(GLOBAL_STEP, "columns left out"),
    ),
    "W&B history as JSON lines": Sample(
        {"history.jsonl": "".join(json.dumps(row) + "\n" for row in history())},
        step=(10, 20, 30, 40),
        step_s=3.0,
        loss=5.0,
        at_s=BEGAN_S + 120,
        notes=(GLOBAL_STEP, "columns left out"),
    ),
    "W&B history as columns of JSON": Sample(
        {
            "history.json": json.dumps(
                {
                    name: {str(i): row.get(name) for i, row in enumerate(history())}
                    for name in (
                        "_step",
                        "_timestamp",
                        "train/loss",
                        "train/global_step",
                        "eval/loss",
                    )
                }
            )
        },
        step=(10, 20, 30, 40),
        step_s=3.0,
        loss=5.0,
        at_s=BEGAN_S + 120,
        notes=(GLOBAL_STEP, "columns left out: eval/loss"),
    ),
    "W&B charts, with the trainer's step": Sample(
        {
            "loss.csv": chart("train/loss", 9, 8, 7, x="train/global_step"),
            "runtime.csv": chart("_timestamp", 100, 140, 180, x="train/global_step"),
        },
        step=(10, 20, 30),
        step_s=4.0,
        loss=7.0,
        at_s=180.0,
    ),
    "W&B chart with W&B's own step": Sample(
        {"loss.csv": chart("train/loss", 9, 8, 7), "t.csv": chart("_timestamp", 100, 140, 180)},
        step=(10, 20, 30),
        step_s=4.0,
        loss=7.0,
        at_s=180.0,
        notes=("steps are numbered by the calls of W&B's log",) * 2,
    ),
    "W&B chart of two runs, of which one is chosen": Sample(
        {"s.csv": chart("train/step_time", 2, 2, 2.5, x="global_step", runs=("a", "b - c"))},
        step=(10, 20, 30),
        step_s=2.5,
        run="b - c",
    ),
    "W&B chart of an unknown metric that is named": Sample(
        {"s.csv": chart("my_seconds", 2, 2, 2.5, x="global_step")},
        step=(10, 20, 30),
        step_s=2.5,
        names=("step_s",),
    ),
    "MLflow's folder of a run": Sample(
        {
            f"{METRICS}/train/loss": "".join(
                f"{1793491200000 + 2500 * i} {9 - i} {i}\n" for i in (1, 2)
            ),
            f"{METRICS}/lr": "1793491202500 3e-4 1\n1793491205000 3e-4 2\n",
            f"{METRICS}/system/cpu": "1793491207000 40 2\n",
        },
        step=(1, 2),
        step_s=2.5,
        loss=7.0,
        at_s=BEGAN_S + 5,
        notes=("columns left out: system/cpu",),
    ),
    "MLflow's files of a newer release": Sample(
        {f"{METRICS}/loss": "1793491202500 8 1 m-1f\n1793491205000 7 2 m-1f\n"},
        step=(1, 2),
        step_s=2.5,
        loss=7.0,
        at_s=BEGAN_S + 5,
    ),
    "MLflow's download of a chart": Sample(
        {
            "metrics.csv": "run_id,key,value,step,timestamp\n"
            "4f1c,train_loss,8,1,1793491202500\n4f1c,train_loss,7,2,1793491205000\n"
            "4f1c,val_loss,9,2,1793491206000\nee02,train_loss,1,2,1793491202500\n"
        },
        step=(1, 2),
        step_s=2.5,
        loss=7.0,
        at_s=BEGAN_S + 5,
        run="4f1c",
        notes=("columns left out: val_loss",),
    ),
    "TensorBoard's events": Sample(
        {"events.out.tfevents.1793491200.host.1.0": EVENTS},
        step=(1, 2, 3),
        step_s=3.0,
        loss=6.0,
        at_s=BEGAN_S + 9,
        notes=("columns left out: eval/loss",),
    ),
    "TensorBoard's events that are still written": Sample(
        {"events.out.tfevents.1793491200.host.1.0": EVENTS + event(4, "train/loss", 5.0)[:-9]},
        step=(1, 2, 3),
        step_s=3.0,
        loss=6.0,
        at_s=BEGAN_S + 9,
        notes=("columns left out: eval/loss",),
    ),
    "TensorBoard's downloads, named by their tags": Sample(
        {
            "run-.-tag-train_loss.csv": "Wall time,Step,Value\n100.0,1,9.5\n102.0,2,9.0\n",
            "run-.-tag-train_grad_norm.json": "[[100.0, 1, 1.5], [102.0, 2, 1.5]]",
        },
        step=(1, 2),
        step_s=2.0,
        loss=9.0,
        at_s=102.0,
    ),
    "Hugging Face, with the totals in the state": Sample(
        {
            "trainer_state.json": json.dumps(
                STATE | {"log_history": [*STEPS, RESULTS | {"step": 30}]}
            )
        },
        step=(10, 20, 30),
        step_s=2.0,
        loss=2.0,
        batch=16.0,
        notes=("loss is used, train_loss is not", MEAN, "columns left out"),
    ),
    "Hugging Face, with the totals beside the state": Sample(
        {"trainer_state.json": json.dumps(STATE), "train_results.json": json.dumps(RESULTS)},
        step=(10, 20, 30),
        step_s=2.0,
        loss=2.0,
        batch=16.0,
        notes=(MEAN, "columns left out"),
    ),
    "elapsed seconds and tokens so far": Sample(
        {
            "h.jsonl": "".join(
                json.dumps(
                    {"step": i, "_runtime": 2.0 * i, "train/num_input_tokens_seen": 4096 * i}
                )
                + "\n"
                for i in (1, 2, 3)
            )
        },
        step=(1, 2, 3),
        step_s=2.0,
        tokens=4096.0,
        at_s=NAN,
        notes=("steps are placed back from the file's last change",),
    ),
}


def written(folder: Path, files: dict[str, str | bytes]) -> list[Path]:
    paths = [folder / name for name in files]
    for path, content in zip(paths, files.values(), strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return paths


@pytest.mark.parametrize("name", SAMPLES)
def test_each_export_is_read(tmp_path: Path, name: str) -> None:
    sample = SAMPLES[name]
    paths = written(tmp_path, sample.files)
    names = sample.names or (None,) * len(paths)

    log = read_tables([*zip(names, paths, strict=True)], run=sample.run)
    steps = complete_steps(log.steps, global_batch=log.totals.global_batch, seq_len=NAN)

    assert tuple(steps.step) == sample.step
    np.testing.assert_allclose(steps.step_s[-1], sample.step_s)
    np.testing.assert_allclose(steps.loss[-1], sample.loss)
    np.testing.assert_allclose(steps.tokens, sample.tokens)
    assert steps.how in ("told", "clock")
    np.testing.assert_allclose(steps.global_batch, sample.batch)
    if "elapsed" not in name:
        np.testing.assert_allclose(steps.at_s[-1], sample.at_s)
    assert len(log.notes) == len(sample.notes)
    for note, begin in zip(sorted(log.notes), sorted(sample.notes), strict=True):
        assert note.startswith(begin)


def test_weights_and_biases_artifact_of_a_history(tmp_path: Path) -> None:
    path = tmp_path / "0000.parquet"
    columns = dict.fromkeys(name for row in history() for name in row)
    table = {name: [row.get(name) for row in history()] for name in columns}
    pq.write_table(pa.table(table | {"media": [{"width": 5}] * len(history())}), path)

    log = read_tables([(None, path)])

    assert log.steps.columns()["step"].tolist() == [10, 20, 30, 40]
    assert log.steps.columns()["loss"].tolist() == [8, 7, 6, 5]
    assert GLOBAL_STEP in log.notes


def test_elapsed_time_counts_from_the_beginning_where_it_is_given(tmp_path: Path) -> None:
    paths = written(tmp_path, SAMPLES["elapsed seconds and tokens so far"].files)

    log: Log = read_tables([(None, paths[0])], began_s=BEGAN_S)

    assert log.steps.columns()["at_s"].tolist() == [BEGAN_S + 2, BEGAN_S + 4, BEGAN_S + 6]
    assert log.notes == []


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"r/metrics/train/loss": "", "r/metrics/lr": "", "r/meta.yaml": ""}, ["lr", "loss"]),
        (
            {"r/trainer_state.json": "", "r/all_results.json": ""},
            ["trainer_state.json", "all_results.json"],
        ),
        (
            {"r/version_0/events.out.tfevents.1": "", "r/version_0/hparams.yaml": ""},
            ["events.out.tfevents.1"],
        ),
    ],
    ids=["MLflow", "Hugging Face", "TensorBoard"],
)
def test_a_folder_stands_for_its_files(
    tmp_path: Path, files: dict[str, str | bytes], found: list[str]
) -> None:
    written(tmp_path, files)

    assert [path.name for path in files_of(tmp_path / "r")] == found
    assert files_of(tmp_path / "r" / found[0]) == [tmp_path / "r" / found[0]]


Refusal = Callable[[], object]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            {"c.csv": chart("train/loss", 9, 8)},
            "but no times of its steps; export the chart of _runtime",
        ),
        (
            {"c.csv": chart("train/loss", 9, runs=("a", "b"))},
            "is of 2 runs: a, b; choose one by --export-run",
        ),
        (
            {"trainer_state.json": json.dumps(STATE)},
            "but no times of its steps; give all_results.json",
        ),
        (
            {"all_results.json": json.dumps(RESULTS)},
            "has totals of a run and no steps; give trainer_state",
        ),
        (
            {"runs.json": '{"runs": []}'},
            "has the last value of each metric only; export the history",
        ),
        ({"runs.csv": "run_id,metrics.loss\na,2\n"}, "has the last value of each metric only"),
        (
            {"c.csv": chart("train/loss", 9, x="Relative Time (Process)")},
            "it has Relative Time (Process), train/loss; export the chart with train/global_step",
        ),
        (
            {"m.csv": "run_id,key,value,step,timestamp\na,loss,1,1,5\nb,loss,2,1,5\n"},
            "is of 2 runs: a, b; choose one by --export-run",
        ),
        (
            {"m.csv": "run,step,loss,timestamp\na,1,9,5\nb,1,8,5\n"},
            "is of 2 runs: a, b; choose one by --export-run",
        ),
        (
            {"c.csv": "step,loss,time\n" + "".join(f"{n},2,{0.6 + n % 3}\n" for n in range(99))},
            "its elapsed time falls at 32 of 99 steps; name the column step_time if it is",
        ),
        ({"c.csv": f"step,loss\n1,{'9' * 200_000}\n"}, "line 2: field larger than field limit"),
        ({"c.csv": f"step,{'9' * 200_000}\n1,2\n"}, "line 1: field larger than field limit"),
        (
            {"metrics/loss": "1793491202500 8\n"},
            "line 1, column 'loss': is not `milliseconds value",
        ),
        (
            {"x.tfevents.1": VERSION + record(b"\x0a\xff")},
            "record 2 is damaged; copy the file again",
        ),
        ({"x.tfevents.1": VERSION}, "has no row; export it again"),
        ({"x.tfevents.1": b"hello"}, "has no row; export it again"),
        ({"run-abc.wandb": b":W&B\xff"}, "is not UTF-8 text; sync it, and write run.history()"),
        ({"wandb-summary.json": '{"_step": 5, "train/loss": 2}'}, "has no list of entries"),
        ({"h.parquet": b"PAR1 and so on"}, "is not complete Parquet"),
    ],
)
def test_what_an_export_lacks_is_said_with_the_fix(
    tmp_path: Path, files: dict[str, str | bytes], reason: str
) -> None:
    paths = written(tmp_path, files)

    with pytest.raises(TableError) as refused:
        read_tables([(None, path) for path in paths])

    assert str(refused.value).startswith(f"{paths[0].name}: ")
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (
            {"r/a/x.tfevents.1": "", "r/b/x.tfevents.1": ""},
            "has the events of 2 runs: a, b; give one",
        ),
        ({"r/notes.txt": ""}, "has neither metrics of MLflow, nor events of TensorBoard, nor"),
    ],
)
def test_a_folder_that_is_no_run_is_refused(
    tmp_path: Path, files: dict[str, str | bytes], reason: str
) -> None:
    written(tmp_path, files)

    with pytest.raises(TableError, match=reason):
        files_of(tmp_path / "r")
