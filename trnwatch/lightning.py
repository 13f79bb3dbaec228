"""Step reports from Lightning's Trainer, also for neuronx-distributed-training (NxDT).

Add ``StepReports()`` to the trainer's callbacks. No hook covers the gradient exchange: its share
stays unknown unless ``callback.reporter.collective()`` wraps it.
"""

from typing import Any, Optional

from trnwatch.hooks import HookedSteps, first_attribute, guarded, plain_number
from trnwatch.reporter import Reporter

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError:
        Callback = object


# Names under which modules log their training loss; the last is NxDT's.
LOSSES = ("loss", "train_loss", "reduced_train_loss")


class StepReports(Callback):  # type: ignore[misc]
    """A callback that reports every optimizer step, of any number of batches."""

    def __init__(self, reporter: Optional[Reporter] = None, **about: Any) -> None:
        """Report with ``reporter``, or one from the environment; ``about`` describes the run."""
        self.reporter = reporter or Reporter.from_env(**about)
        self._steps = HookedSteps(self.reporter)
        self._number = 0
        self._saves = False

    @guarded
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Report the facts of the run that the trainer knows."""
        self._number = int(trainer.global_step)
        self.reporter.suggest(**facts_of(trainer, pl_module))

    @guarded
    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, *more: Any
    ) -> None:
        """Mark the end of waiting for data, or of the checkpoint if one was written."""
        self._steps.begin()
        self._steps.mark("checkpoint" if self._saves else "input")
        self._steps.set_activity("step")
        self._saves = False

    @guarded
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, *more: Any
    ) -> None:
        """Report the step if this batch completed it."""
        self._steps.set_activity("input")
        number = int(trainer.global_step)
        if number > self._number:
            self._number = number
            self._steps.end(number, loss=loss_of(trainer))
        else:
            self._steps.skip()

    @guarded
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._steps.skip()
        self._steps.set_activity("other")

    @guarded
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Count the time since the last mark as other; an evaluation has ended."""
        self._steps.mark("other")
        self._steps.set_activity("input")

    @guarded
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """Remember the checkpoint: Lightning has no hook after it is written."""
        self._saves = True
        self._steps.set_activity("checkpoint")

    @guarded
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Report that training failed, with the exception's type as the reason."""
        self._steps.finish(failed=True, reason=type(exception).__name__)

    @guarded
    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._steps.finish()


def loss_of(trainer: Any) -> Optional[float]:
    """Return the logged loss, None if reading it would wait for a device."""
    logged = getattr(trainer, "callback_metrics", None) or {}
    return next((plain_number(logged[name]) for name in LOSSES if name in logged), None)


def facts_of(trainer: Any, module: Any) -> dict[str, Any]:
    """Return the facts of the run from the trainer and NxDT's configuration."""
    config = getattr(module, "cfg", None) or getattr(module, "config", None)
    strategy = first_attribute(config, "distributed_strategy")
    data = first_attribute(config, "data")
    model = first_attribute(config, "model")
    optimizers = getattr(trainer, "optimizers", None)
    return {
        "run": first_attribute(config, "name"),
        "tp": first_attribute(strategy, "tensor_model_parallel_size"),
        "pp": first_attribute(strategy, "pipeline_model_parallel_size"),
        "cp": first_attribute(strategy, "context_parallel_size"),
        "micro_batch": first_attribute(data, "micro_batch_size"),
        "global_batch": first_attribute(data, "global_batch_size"),
        "seq_len": first_attribute(data, "seq_length"),
        "layers": first_attribute(model, "num_layers"),
        "hidden": first_attribute(model, "hidden_size"),
        "n_nodes": first_attribute(trainer, "num_nodes"),
        "optimizer": first_attribute(first_attribute(model, "optim"), "name")
        or (type(optimizers[0]).__name__ if optimizers else None),
    }
