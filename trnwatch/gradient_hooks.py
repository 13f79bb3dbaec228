"""Times the gradient exchange of every Nth step, without a change of the training code.

The functions that exchange gradients are wrapped where their library offers them. In a sampled
step the device is idle before and after the exchange, so that its time is the exchange's alone;
this costs the overlap of that one step. Every worker samples the same steps, by their number.
"""

import functools
import sys
from typing import Any, Callable, Optional, Union

from trnwatch.log import warn_once
from trnwatch.steps import NoOpStep, Step

# Module, function (a method as "Class.method").
EXCHANGES = (
    ("neuronx_distributed.parallel_layers.grads", "bucket_allreduce_gradients"),
    ("torch_xla.core.xla_model", "reduce_gradients"),
    ("torch.distributed", "all_reduce"),
    ("torch.distributed", "all_reduce_coalesced"),
    ("torch.distributed", "reduce_scatter_tensor"),
)


class GradientHooks:
    """Wraps the known exchanges; ``install`` may be called often, since libraries load late."""

    def __init__(self, current: Callable[[], Union[Step, NoOpStep, None]], every: int) -> None:
        """Time the exchange of every ``every``-th step; ``current`` returns the running step."""
        self._current = current
        self._every = every
        self._missing = list(EXCHANGES)
        self._is_timing = False

    def install(self) -> None:
        """Wrap the functions of the libraries that are loaded by now."""
        for target in list(self._missing):
            module = sys.modules.get(target[0])
            if module is None:
                continue
            self._missing.remove(target)
            function = getattr(module, target[1], None)
            if callable(function):
                setattr(module, target[1], self._timed(function))

    def _timed(self, exchange: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(exchange)
        def timed(*arguments: Any, **options: Any) -> Any:
            # An exchange calls others, which are part of it.
            step = self._current()
            is_sampled = isinstance(step, Step) and step.number % self._every == 0
            if step is None or not is_sampled or self._is_timing or options.get("async_op"):
                return exchange(*arguments, **options)
            self._is_timing = True
            try:
                _wait_for_device()
                with step.collective():
                    result = exchange(*arguments, **options)
                    _wait_for_device()
                return result
            finally:
                self._is_timing = False

        return timed


def _wait_for_device() -> None:
    try:
        if (xla := sys.modules.get("torch_xla.core.xla_model")) is not None:
            xla.mark_step()
            xla.wait_device_ops()
        elif (cuda := sys.modules.get("torch.cuda")) is not None and cuda.is_available():
            cuda.synchronize()
    except Exception as error:
        warn_once("cannot wait for the device, so collectives are not timed well: %s", error)


def sample_every(text: str) -> Optional[int]:
    """Read TRNWATCH_COLLECTIVE_EVERY: a step number, None for no sampling."""
    if not text.strip():
        return None
    if text.strip().isdecimal() and int(text) > 0:
        return int(text)
    warn_once("TRNWATCH_COLLECTIVE_EVERY: %r is not a number of steps. Give 20, say", text)
    return None
