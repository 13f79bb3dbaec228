"""Loss and optimizer from the callbacks, without waiting for a device."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.trnwatch.servers import Listener, listening
from tests.trnwatch.test_callbacks import ENV, Trainer, records
from trnwatch import Reporter, huggingface, lightning


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as each:
        yield each


def test_hugging_faces_loss_goes_with_the_step_it_was_logged_after(listener: Listener) -> None:
    callback = huggingface.StepReports(Reporter(listener.url, token="t", env=ENV))
    trainer = Trainer(callback)
    trainer.call("on_train_begin")
    for number, logs in ((1, {"loss": 2.5}), (2, {}), (3, {"loss": 2.25}), (4, None)):
        trainer.call("on_step_begin")
        trainer.state.global_step = number
        trainer.call("on_step_end")
        if logs is not None:
            trainer.call("on_log", logs=logs)
    trainer.call("on_log", logs={"train_loss": 2.4})
    trainer.call("on_train_end")

    steps = records(listener, callback.reporter)

    assert [(step["step"], step.get("loss")) for step in steps] == [
        (1, 2.5),
        (2, None),
        (3, 2.25),
        (4, None),
    ]


@pytest.mark.parametrize(
    ("loss", "shown"),
    [
        (2.5, 2.5),
        (1e30, 1e30),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (-1e39, "-Infinity"),
        ("2.5", None),
    ],
)
def test_a_loss_is_reported_as_it_is_also_if_it_is_not_finite(
    listener: Listener, loss: object, shown: float | str | None
) -> None:
    callback = huggingface.StepReports(Reporter(listener.url, token="t", env=ENV))
    trainer = Trainer(callback)
    trainer.call("on_train_begin")
    trainer.call("on_step_begin")
    trainer.state.global_step = 1
    trainer.call("on_step_end")
    trainer.call("on_log", logs={"loss": loss})

    [step] = records(listener, callback.reporter)

    assert step.get("loss") == shown


class OnDevice:
    """A tensor that would have to be waited for."""

    device = SimpleNamespace(type="xla")

    def __float__(self) -> float:
        raise AssertionError("the loss was fetched from the device")


class OnHost:
    """A tensor that is there."""

    device = SimpleNamespace(type="cpu")

    def __float__(self) -> float:
        return 2.5


@pytest.mark.parametrize(
    ("logged", "loss"),
    [
        ({"train_loss": OnHost()}, 2.5),
        ({"reduced_train_loss": 1.5}, 1.5),
        ({"train_loss": OnDevice()}, None),
        ({"val_loss": 1.0}, None),
    ],
)
def test_lightnings_loss_is_read_where_that_costs_nothing(
    logged: dict[str, object], loss: float | None
) -> None:
    assert lightning.loss_of(SimpleNamespace(callback_metrics=logged)) == loss


def test_the_optimizer_is_reported_by_each_frameworks_own_name() -> None:
    class AdamW:
        pass

    args = SimpleNamespace(optim=SimpleNamespace(value="adamw_torch"))
    trainer = SimpleNamespace(optimizers=[AdamW()])

    assert huggingface.facts_of(args, None)["optimizer"] == "adamw_torch"
    assert lightning.facts_of(trainer, None)["optimizer"] == "AdamW"
    assert lightning.facts_of(SimpleNamespace(), None)["optimizer"] is None
