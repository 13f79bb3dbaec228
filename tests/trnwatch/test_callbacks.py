"""The callbacks, driven by the hooks in the order in which the libraries call them.

Neither library is installed here: the orders are those of transformers' Trainer and
Optimum-Neuron's, and of Lightning's training epoch loop, with their names and arguments.
"""

import inspect
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trnwatch.servers import Listener, listening, until
from trnwatch import Reporter, huggingface, lightning

ENV = {"TRNWATCH_NODE": "trn-a", "TRNWATCH_SESSION": "1"}
WHILE_S = 0.02
HUGGING_FACE = (
    "on_train_begin",
    "on_step_begin",
    "on_step_end",
    "on_log",
    "on_evaluate",
    "on_save",
    "on_train_end",
)


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as each:
        yield each


def records(listener: Listener, reporter: Reporter) -> list[dict[str, Any]]:
    """End a job and return its steps once all are sent."""
    reporter.finish()
    until(lambda: any(line["kind"] == "end" for line in listener.lines))
    return [line for line in listener.lines if line["kind"] == "step"]


def pause() -> None:
    time.sleep(WHILE_S)


class Trainer:
    """Calls the hooks as transformers' Trainer does, gradient accumulation included."""

    def __init__(self, callback: Any, **args: Any) -> None:
        self.callback = callback
        self.args = SimpleNamespace(**args)
        self.state = SimpleNamespace(global_step=0, num_input_tokens_seen=0)
        self.control = SimpleNamespace()
        self.model = SimpleNamespace(
            config=SimpleNamespace(_name_or_path="meta/Llama-7b", num_hidden_layers=32)
        )
        # The reported activity while it waits for data, steps, evaluates, saves.
        self.said: list[str] = []

    def work(self) -> None:
        pause()
        self.said.append(self.callback.reporter.activity)

    def call(self, hook: str, **more: Any) -> None:
        given = {"model": self.model, "optimizer": None, "train_dataloader": None} | more
        method = getattr(self.callback, hook, None)
        if method is not None:
            assert method(self.args, self.state, self.control, **given) is None

    def train(self, *, n_steps: int, saves_at: int = 0, evaluates_at: int = 0) -> None:
        self.call("on_train_begin")
        self.call("on_epoch_begin")
        for _ in range(n_steps):
            self.work()  # get_batch_samples
            self.call("on_step_begin")
            self.work()
            self.call("on_substep_end")
            self.call("on_pre_optimizer_step")
            self.call("on_optimizer_step")
            self.state.global_step += 1
            self.state.num_input_tokens_seen += 512
            self.control.should_evaluate = self.state.global_step == evaluates_at
            self.control.should_save = self.state.global_step == saves_at
            self.call("on_step_end")
            self.call("on_log", logs={})
            if self.control.should_evaluate:
                self.work()
                self.call("on_evaluate", metrics={})
            if self.control.should_save:
                self.work()
                self.call("on_save")
        self.call("on_epoch_end")
        self.call("on_train_end")


def test_hugging_faces_steps_are_reported(listener: Listener) -> None:
    callback = huggingface.StepReports(Reporter(listener.url, token="t", env=ENV))
    trainer = Trainer(callback, run_name="my run", per_device_train_batch_size=2, world_size=1)
    trainer.train(n_steps=4, saves_at=2, evaluates_at=3)
    steps = records(listener, callback.reporter)
    runs = [line for line in listener.lines if line["kind"] == "run"]

    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert {step["run"] for step in steps} == {"my-run"}
    assert all(step["input_s"] >= WHILE_S for step in steps[1:])
    assert steps[2]["checkpoint_s"] >= WHILE_S > steps[1].get("checkpoint_s", 0.0)
    assert steps[3]["other_s"] >= WHILE_S
    assert [step.get("tokens") for step in steps] == [512, 512, 512, 512]
    assert (runs[-1]["model"], runs[-1]["layers"], runs[-1]["global_batch"]) == ("Llama-7b", 32, 2)


def train_after_a_while(
    listener: Listener, env: dict[str, str], *, announces: bool = False
) -> list[dict[str, Any]]:
    """Train as a script that loads a model in between does; return what its node reported."""
    reporter = Reporter(listener.url, token="t", env=env)
    if announces:
        until(lambda: bool(listener.lines))
    callback = huggingface.StepReports(reporter)
    # What begins later reports meanwhile.
    other = Reporter(listener.url, token="t", env={"TRNWATCH_NODE": "trn-b"})
    until(lambda: any(line.get("worker") == "trn-b" for line in listener.lines))
    other.finish()
    Trainer(callback, run_name="llama-lr3").train(n_steps=1)
    records(listener, reporter)
    return [line for line in listener.lines if line.get("worker", line.get("node")) == "trn-a"]


@pytest.mark.parametrize("slurm", [{}, {"SLURM_JOB_NAME": "llama"}])
def test_a_run_that_the_framework_names_begins_under_no_other_name(
    listener: Listener, slurm: dict[str, str]
) -> None:
    lines = train_after_a_while(listener, ENV | slurm)

    assert {line["run"] for line in lines} == {"llama-lr3"}


def test_a_callback_of_two_trainings_reports_two_runs(listener: Listener) -> None:
    """As in a sweep or a notebook: the second one is no long step of the first."""
    callback = huggingface.StepReports(Reporter(listener.url, token="t", env=ENV))
    began_s: dict[str, float] = {}

    def have_ended() -> bool:
        return [line["kind"] for line in listener.lines].count("end") == len(began_s)

    for name in ("lr-1", "lr-2"):
        began_s[name] = time.time()
        Trainer(callback, run_name=name).train(n_steps=2)
        until(have_ended)
        time.sleep(5 * WHILE_S)
    steps = [line for line in listener.lines if line["kind"] == "step"]

    assert [(step["run"], step["step"]) for step in steps] == [
        ("lr-1", 1),
        ("lr-1", 2),
        ("lr-2", 1),
        ("lr-2", 2),
    ]
    first = {step["run"]: step["ended_at"] - step["step_s"] for step in reversed(steps)}
    assert first["lr-2"] > began_s["lr-2"] - WHILE_S
    assert len({step["boot"] for step in steps}) == 2


def test_a_run_that_is_reported_already_keeps_its_name(listener: Listener) -> None:
    lines = train_after_a_while(listener, ENV | {"SLURM_JOB_NAME": "llama"}, announces=True)

    assert {line["run"] for line in lines} == {"llama"}
    assert [line["kind"] for line in lines][-2:] == ["step", "end"]


def test_a_run_with_a_name_is_reported_before_it_trains(listener: Listener) -> None:
    huggingface.StepReports(Reporter(listener.url, token="t", env=ENV | {"TRNWATCH_RUN": "mine"}))
    until(lambda: bool(listener.lines))

    assert listener.lines[-1]["run"] == "mine"


def test_a_script_that_ends_before_it_trains_reports_its_end(listener: Listener) -> None:
    callback = lightning.StepReports(Reporter(listener.url, token="t", env=ENV))
    callback.reporter.finish(failed=True, reason="MemoryError")
    until(lambda: any(line["kind"] == "end" for line in listener.lines))

    assert listener.lines[-1]["reason"] == "MemoryError"


def test_heartbeats_know_what_hugging_faces_trainer_does(listener: Listener) -> None:
    callback = huggingface.StepReports(Reporter(listener.url, token="t", env=ENV))
    trainer = Trainer(callback)
    trainer.train(n_steps=2, saves_at=1, evaluates_at=1)
    callback.reporter.finish()

    assert trainer.said == ["", "step", "other", "checkpoint", "input", "step"]
    assert callback.reporter.activity == ""


def test_optimum_neurons_layout_is_reported() -> None:
    args = SimpleNamespace(
        world_size=64,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=16,
        bf16=True,
        trn_config=SimpleNamespace(tensor_parallel_size=8, pipeline_parallel_size=2),
    )
    facts = huggingface.facts_of(args, None)

    assert (facts["tp"], facts["pp"], facts["global_batch"]) == (8, 2, 64)
    assert facts["precision"] == "bf16"


@pytest.mark.parametrize("hook", HUGGING_FACE)
def test_hugging_faces_hooks_take_its_arguments(hook: str) -> None:
    source = inspect.getclosurevars(getattr(huggingface.StepReports, hook)).nonlocals["hook"]

    assert list(inspect.signature(source).parameters)[1:] == ["args", "state", "control", "kwargs"]


class Loop:
    """Calls the hooks as Lightning's training epoch loop does; ModelCheckpoint comes last."""

    def __init__(self, callback: Any, *, accumulates: int = 1) -> None:
        self.callback = callback
        self.accumulates = accumulates
        self.trainer = SimpleNamespace(global_step=0, num_nodes=4)
        self.module = SimpleNamespace(
            cfg=SimpleNamespace(
                name="nxdt",
                distributed_strategy=SimpleNamespace(tensor_model_parallel_size=8),
                data=SimpleNamespace(global_batch_size=1024, seq_length=4096),
                model=None,
            )
        )

    def call(self, hook: str, *more: Any) -> None:
        getattr(self.callback, hook)(self.trainer, self.module, *more)

    def train(self, *, n_batches: int, saves_at: int = 0, validates_at: int = 0) -> None:
        self.call("on_train_start")
        for index in range(n_batches):
            pause()  # next(data_fetcher)
            self.call("on_train_batch_start", {}, index)
            pause()
            if (index + 1) % self.accumulates == 0:
                self.trainer.global_step += 1
            self.call("on_train_batch_end", None, {}, index)
            if index + 1 == saves_at:
                self.call("on_save_checkpoint", {})
                pause()
            if index + 1 == validates_at:
                self.call("on_validation_start")
                pause()
                self.call("on_validation_end")
        self.call("on_train_end")


def test_lightnings_steps_are_reported(listener: Listener) -> None:
    callback = lightning.StepReports(Reporter(listener.url, token="t", env=ENV))
    Loop(callback).train(n_batches=4, saves_at=2, validates_at=3)
    steps = records(listener, callback.reporter)
    runs = [line for line in listener.lines if line["kind"] == "run"]

    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert steps[1]["input_s"] >= WHILE_S
    assert steps[2]["checkpoint_s"] >= 2 * WHILE_S
    assert steps[3]["other_s"] >= WHILE_S
    assert (runs[-1]["run"], runs[-1]["tp"], runs[-1]["seq_len"]) == ("nxdt", 8, 4096)


def test_batches_that_only_accumulate_are_no_steps(listener: Listener) -> None:
    callback = lightning.StepReports(Reporter(listener.url, token="t", env=ENV))
    Loop(callback, accumulates=3).train(n_batches=7)
    steps = records(listener, callback.reporter)

    assert [step["step"] for step in steps] == [1, 2]
    assert steps[0]["step_s"] >= 3 * WHILE_S


def test_an_exception_ends_the_run_as_failed(listener: Listener) -> None:
    callback = lightning.StepReports(Reporter(listener.url, token="t", env=ENV))
    Loop(callback).call("on_exception", RuntimeError("secret path"))
    until(lambda: any(line["kind"] == "end" for line in listener.lines))

    assert (listener.lines[-1]["failed"], listener.lines[-1]["reason"]) == (True, "RuntimeError")


def test_a_hook_never_raises(listener: Listener) -> None:
    callback = huggingface.StepReports(Reporter(listener.url, token="t", env=ENV))

    callback.on_step_end(None, None, None)
    callback.on_train_begin(None, None, None)
    lightning.StepReports(callback.reporter).on_train_start(None, None)
    callback.reporter.finish()
