"""`manage.py import_log`: one finished run with steps, compiles and errors."""

import gzip
import json
import math
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.core.management import call_command
from django.utils import timezone

from fleet.models import Annotation, CompileEvent, Node, ReadLog, Run
from fleet.runs.imported import log_caveats
from fleet.runs.step_sums import steps_of
from fleet.trials.comparison import compare
from fleet.trials.services import begin
from telemetry.errors import FieldError
from telemetry.store.chunks import LOSS, decode_steps
from telemetry.store.hot import HotStore
from telemetry.store.models import RunChunk
from tests.helpers import NOON
from tests.importers.import_command import A, B, Write, dated, imported, n_stored
from tests.importers.logs.log_lines import bar, call, done, hit, neuronx, trainer

pytestmark = pytest.mark.django_db

KEYS = [
    "run",
    "family",
    "steps",
    "last_step",
    "step_s",
    "seq_per_s",
    "tokens_per_s",
    "tokens",
    "global_batch",
    "loss",
    "started_at",
    "finished_at",
    "compile",
    "hardware_errors",
    "end",
    "errors",
    "lines",
    "understood",
    "skipped",
    "examples",
]


def test_it_shows_what_it_found(file: Path) -> None:
    found = imported(file, seq_len=4096, global_batch=512)

    assert list(found) == KEYS
    assert (found["family"], found["steps"], found["last_step"]) == ("neuronx-distributed", 10, 10)
    assert (found["step_s"], found["loss"]) == (10.0, 7.0)
    assert found["tokens"] == 10 * 512 * 4096
    assert found["tokens_per_s"] == 512 * 4096 / 10.0
    assert found["compile"]["graphs"] == 1
    assert (found["compile"]["hits"], found["compile"]["misses"]) == (1, 1)
    assert found["compile"]["seconds"] == 60.0
    assert found["hardware_errors"] == 1
    assert found["skipped"] == {"other": 1, "damaged": 1}
    assert found["examples"]["damaged"][0]["text"] == "step 11 step_time"


def test_it_becomes_a_run_that_is_over_with_its_steps(file: Path) -> None:
    imported(file, optimizer="AdamW")
    run = Run.objects.get(name="logged")

    assert run.optimizer == "AdamW"

    # Its last line is a device's error.
    assert run.phase == Run.Phase.FAILED
    assert run.end_reason.startswith("HBM_UNCORRECTABLE_ERROR on steady device 3")
    assert not run.is_simulated
    assert n_stored() == run.last_step == 10
    assert run.finished_at is not None
    assert f"{run.finished_at:%Y-%m-%dT%H:%M:%SZ}" == dated(200)
    assert run.log.is_dated


def test_a_log_knows_no_split_so_that_the_share_is_absent(file: Path) -> None:
    imported(file)
    steps = decode_steps(bytes(RunChunk.objects.filter(run="logged")[0].steps))
    np.testing.assert_allclose(steps[:, LOSS], 7.9, rtol=1.3e-4)
    compute, wait, transfer, data, checkpoint, other = steps[:, 3:9].T

    assert other == pytest.approx(10.0)
    for absent in (compute, wait, transfer, data, checkpoint):
        assert all(math.isnan(value) for value in absent)


def test_what_no_one_states_stays_unsaid(file: Path) -> None:
    found = imported(file)
    run = Run.objects.get(name="logged")

    assert (found["tokens"], found["tokens_per_s"], found["global_batch"]) == (None, None, 554)
    assert (run.model, run.instance_type) == ("not recorded", "not recorded")
    assert math.isnan(run.usd_by(run.started_at))


def test_with_hardware_named_the_list_price_follows(file: Path) -> None:
    imported(file, instance="trn1.32xlarge", nodes=4, model="llama2-7b", team="llm")
    run = Run.objects.get(name="logged")

    assert run.usd_per_node_hour > 0
    assert "on demand" in run.price_basis
    assert (run.model, run.team, run.n_nodes) == ("llama2-7b", "llm", 4)


def test_a_name_that_the_catalog_lacks_is_a_warning(file: Path) -> None:
    shown = StringIO()
    imported(file, instance="trn9.huge", model="mine", nodes=2, stderr=shown)

    assert "trn9.huge is not in the catalog; cost is unknown" in shown.getvalue()
    assert "mine is not in the catalog; MFU is unknown" in shown.getvalue()


def test_compiles_are_kept_with_who_and_when(file: Path) -> None:
    imported(file)
    miss, found = CompileEvent.objects.order_by("at")

    assert (miss.module, miss.outcome, miss.seconds) == (A, "miss", 60.0)
    assert (found.outcome, found.seconds, found.compiler) == ("hit", None, "2.15.128.0+56dc5a86")


def test_broken_hardware_is_annotated_on_run_and_node(file: Path, steady: Node) -> None:
    imported(file)
    (note,) = Annotation.objects.filter(run__name="logged")

    assert note.node == steady
    assert f"{note.at:%Y-%m-%dT%H:%M:%SZ}" == dated(150)
    assert note.text == (
        "HBM_UNCORRECTABLE_ERROR on steady device 3; the driver asks to terminate instance"
    )


def test_repeating_it_doubles_nothing_and_keeps_what_people_reported(file: Path) -> None:
    imported(file)
    run = Run.objects.get(name="logged")
    Annotation.objects.create(run=run, at=run.started_at, kind="note", text="mine", by="alice")
    imported(file)

    assert Run.objects.get(name="logged").pk == run.pk
    assert (ReadLog.objects.count(), n_stored()) == (1, 10)
    assert CompileEvent.objects.count() == 2
    assert sorted(Annotation.objects.values_list("by", flat=True)) == ["alice", "import_log"]


def test_another_log_of_that_name_replaces_the_first(file: Path, write: Write) -> None:
    imported(file)
    imported(write(*(f"{dated(10.0 * n)} {neuronx(n)}" for n in (1, 2, 3)), name="b.log"))

    assert (n_stored(), CompileEvent.objects.count()) == (3, 0)
    assert Run.objects.get(name="logged").last_step == 3


def test_a_trainers_last_lines_give_the_batch_size(write: Write) -> None:
    last = {"train_runtime": 50.0, "train_samples_per_second": 12.8, "train_steps_per_second": 0.4}
    found = imported(write(f"{bar(10)}{trainer()}", f"{bar(20)}{trainer()}", str(last)))

    assert found["global_batch"] == 32
    assert found["seq_per_s"] == pytest.approx(12.8)


def test_a_log_of_compiles_alone_is_a_run_too(write: Write) -> None:
    found = imported(write(call(A), done(A, seconds=1800), call(B, seconds=1800)))

    assert (found["steps"], found["family"], found["step_s"]) == (0, None, None)
    assert found["compile"]["misses"] == 2
    assert n_stored() == 0


def test_compiles_without_times_have_no_duration(write: Write) -> None:
    found = imported(write(call(A), "Compiler status PASS", neuronx(1)))
    assert found["compile"]["misses"] == 1
    assert found["compile"]["seconds"] is None

    hits = imported(write(hit(A), neuronx(1)), run="hits")
    assert hits["compile"]["seconds"] == 0.0


def test_gzipped_files_and_several_are_one_run(write: Write, tmp_path: Path) -> None:
    plain = write(neuronx(1), neuronx(2))
    packed = tmp_path / "rank1.log.gz"
    packed.write_bytes(gzip.compress(f"{neuronx(2)}\n{neuronx(3)}\n".encode()))

    assert imported(plain, packed)["steps"] == 3


def test_as_text_it_states_what_was_skipped_and_where(file: Path) -> None:
    out = StringIO()
    call_command("import_log", str(file), run="logged", stdout=out, stderr=StringIO())

    assert "neuronx-distributed" in out.getvalue()
    assert "from the log" in out.getvalue()
    assert "train.log:46: step 11 step_time" in out.getvalue()


def test_a_log_of_every_tenth_step_is_an_arm_with_all_its_steps(
    write: Write, hot: HotStore
) -> None:
    about = {"instance": "trn2.48xlarge", "nodes": 4, "global_batch": 256, "seq_len": 4096}
    for every in (1, 10):
        lines = [
            f"{dated(7 * step)} {neuronx(step, step_s=7.0, loss=9.0 - step / 200)}"
            for step in range(every, 1001, every)
        ]
        imported(write(*lines), run=f"every-{every}", **about)
    now = timezone.now()
    trial = begin(
        "logs",
        "Alike?",
        baseline="every-1",
        candidates=["every-10"],
        planned_steps=100,
        by="ada",
        now=now,
    )

    figures = compare(hot, trial, now=now)
    each, tenth = figures.arms

    assert tenth.n_steps == 1000
    assert tenth.n_tokens == pytest.approx(each.n_tokens)
    assert tenth.usd_settled == pytest.approx(each.usd_settled)
    assert (tenth.usd_between, tenth.ready_s) == (0.0, None)
    loss = figures.candidates[0].get("loss")
    assert loss is not None
    assert loss.ratio == pytest.approx(0.0, abs=0.01)


@pytest.mark.parametrize(
    ("logged", "given", "says"),
    [
        # The batch of one device, where the log has that of all.
        (
            {"global_batch_size": 256},
            {"global_batch": 32},
            "the batch is 32 sequences, as given with --global-batch, but the log says 256",
        ),
        ({"global_batch_size": 256}, {"global_batch": 256}, ""),
        # Tokens per second of one device of 64.
        (
            {"global_batch_size": 256, "tokens_per_second": 8192},
            {"seq_len": 4096},
            "a step has 16.4 k tokens by the logged tokens per second, which counts, and 1.05 M",
        ),
        ({"global_batch_size": 256, "tokens_per_second": 524_288}, {"seq_len": 4096}, ""),
    ],
)
def test_figures_that_contradict_each_other_are_named(
    write: Write, logged: dict[str, int], given: dict[str, Any], says: str
) -> None:
    lines = [json.dumps({"step": n, "step_time": 2.0, "loss": 3.0} | logged) for n in range(1, 31)]

    imported(write(*lines), **given)

    caveats = " ".join(log_caveats(ReadLog.objects.get())).replace("\u202f", " ")
    assert says in caveats
    assert bool(says) == ("--global-batch" in caveats)


def test_one_log_under_two_names_is_no_second_measurement(write: Write) -> None:
    about = {"instance": "trn2.48xlarge", "nodes": 4, "global_batch": 256, "seq_len": 4096}
    for run, times in (("a", 1.0), ("again", 1.0), ("other", 1.1)):
        lines = [neuronx(step, step_s=round(times * (7 + step % 3), 1)) for step in range(1, 101)]
        imported(write(*lines), run=run, **about)
    wish: dict[str, Any] = {"question": "Alike?", "planned_steps": 100, "by": "ada", "now": NOON}

    for field, arms in (
        ("candidates", {"candidates": ["again"]}),
        ("replicates", {"candidates": ["other"], "replicates": {"a": ["again"]}}),
    ):
        with pytest.raises(FieldError, match="again has the steps of a: one log") as refused:
            begin("copies", baseline="a", **arms, **wish)
        assert refused.value.field == field

    assert begin("others", baseline="a", candidates=["other"], **wish).arms.count() == 2


@pytest.mark.parametrize(("gap_s", "n_steps"), [(7.0 * 4900, 5000), (7.0, 200)])
def test_steps_of_a_missing_part_count_if_its_time_holds_them(
    write: Write, hot: HotStore, gap_s: float, n_steps: int
) -> None:
    ends = [7.0 * n for n in range(1, 101)]
    ends += [700 + gap_s + 7.0 * n for n in range(100)]
    numbers = [*range(1, 101), *range(5000, 5100)]
    lines = [
        f"{dated(end)} {neuronx(n, step_s=7.0)}" for n, end in zip(numbers, ends, strict=True)
    ]

    imported(write(*lines), global_batch=256, seq_len=4096)

    run = Run.objects.get(name="logged")
    assert run.n_tokens == pytest.approx(256 * 4096 * n_steps, rel=0.03)
    assert len(steps_of(hot, run, until=timezone.now())) == pytest.approx(n_steps, rel=0.03)
