"""Step reports from the Trainer of Hugging Face and of Optimum-Neuron.

Add ``StepReports()`` to the trainer's callbacks. No hook covers the gradient exchange: its share
stays unknown unless ``callback.reporter.collective()`` wraps it.
"""

from typing import Any, Optional

from trnwatch.hooks import HookedSteps, first_attribute, guarded, plain_number
from trnwatch.reporter import Reporter

try:
    from transformers import TrainerCallback
except ImportError:
    TrainerCallback = object


class StepReports(TrainerCallback):  # type: ignore[misc]
    """A callback that reports every optimizer step: duration, input wait, checkpoints, loss."""

    def __init__(self, reporter: Optional[Reporter] = None, **about: Any) -> None:
        """Report with ``reporter``, or one from the environment; ``about`` describes the run."""
        self.reporter = reporter or Reporter.from_env(**about)
        self._steps = HookedSteps(self.reporter, loss_comes_later=True)
        self._n_tokens: Optional[float] = None

    @guarded
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the facts of the run that the trainer knows."""
        self._n_tokens = first_attribute(state, "num_input_tokens_seen") or 0
        self.reporter.suggest(**facts_of(args, kwargs.get("model")))

    @guarded
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Mark the end of waiting for data; report the previous step if its loss did not come."""
        self._steps.flush()
        self._steps.begin()
        self._steps.mark("input")
        self._steps.set_activity("step")

    @guarded
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report the step; tokens only if the trainer counts those of all processes."""
        seen = first_attribute(state, "num_input_tokens_seen")
        tokens = None if seen is None or self._n_tokens is None else seen - self._n_tokens
        self._n_tokens = seen
        self._steps.end(int(state.global_step), tokens or None)
        # When this hook runs, the trainer has decided whether an evaluation follows the step.
        evaluates = getattr(control, "should_evaluate", False)
        self._steps.set_activity("other" if evaluates else _after_evaluation(control))

    @guarded
    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take the logged loss, which is the mean of the last ``logging_steps``."""
        self._steps.set_loss(plain_number((kwargs.get("logs") or {}).get("loss")))

    @guarded
    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the time since the last mark as other; an evaluation has ended."""
        self._steps.mark("other")
        self._steps.set_activity(_after_evaluation(control))

    @guarded
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the time since the last mark as a checkpoint."""
        self._steps.mark("checkpoint")
        self._steps.set_activity("input")

    @guarded
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._steps.finish()


def _after_evaluation(control: Any) -> str:
    return "checkpoint" if getattr(control, "should_save", False) else "input"


def facts_of(args: Any, model: Any) -> dict[str, Any]:
    """Return the facts of the run from the trainer's arguments and the model's configuration."""
    layout = first_attribute(args, "trn_config") or args
    tp = first_attribute(layout, "tensor_parallel_size") or 1
    pp = first_attribute(layout, "pipeline_parallel_size") or 1
    n_replicas = max(1, int(first_attribute(args, "world_size") or 1) // (int(tp) * int(pp)))
    each = first_attribute(args, "per_device_train_batch_size") or 0
    config, optimizer = getattr(model, "config", None), first_attribute(args, "optim")
    name = first_attribute(config, "_name_or_path", "name_or_path") or ""
    return {
        "run": first_attribute(args, "run_name"),
        "model": str(name).rstrip("/").rpartition("/")[2] or None,
        "tp": tp,
        "pp": pp,
        "micro_batch": each or None,
        "global_batch": each
        * (first_attribute(args, "gradient_accumulation_steps") or 1)
        * n_replicas,
        "seq_len": first_attribute(args, "max_length", "max_seq_length"),
        "precision": "bf16" if first_attribute(args, "bf16") else None,
        "optimizer": getattr(optimizer, "value", optimizer),
        "layers": first_attribute(config, "num_hidden_layers"),
        "hidden": first_attribute(config, "hidden_size"),
    }
