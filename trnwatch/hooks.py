"""Steps told by a framework's hooks: each lasts from the end of the one before to its own."""

import time
from typing import Any, Optional, Union

from trnwatch.complaints import warn_once
from trnwatch.reporter import Reporter
from trnwatch.steps import NoOpStep, Step


class HookedSteps:
    """Times steps by the moments at which a framework calls; nothing is lost between two steps.

    What a hook marks is the stretch since the mark before: waiting for data ends when a step
    begins, writing a checkpoint when the framework says that it is written.
    """

    def __init__(self, reporter: Reporter, *, loss_comes_later: bool = False) -> None:
        """With ``loss_comes_later`` each step is kept until its loss, or the next step, comes."""
        self.reporter = reporter
        self._loss_comes_later = loss_comes_later
        self._held: Optional[tuple[Step, float, float]] = None
        self._step: Union[Step, NoOpStep, None] = None
        self._mark_s = 0.0

    def begin(self) -> None:
        """Begin the first step, unless one is under way: what came before is no training."""
        if self._step is None:
            self._step = self.reporter.step()
            self._step.__enter__()
            self._mark_s = time.perf_counter()

    def mark(self, part: str) -> None:
        """Say what the stretch since the last mark was: input, checkpoint or other."""
        now_s, step = time.perf_counter(), self._step
        if isinstance(step, Step):
            stretch = getattr(step, part)()
            stretch.seconds += now_s - self._mark_s
        self._mark_s = now_s

    def skip(self) -> None:
        """Let the stretch since the last mark be part of the step's own work."""
        self._mark_s = time.perf_counter()

    def end(
        self, number: int, tokens: Optional[float] = None, loss: Optional[float] = None
    ) -> None:
        """End the step under way, and begin the next."""
        self.flush()
        step, self._step = self._step, None
        if isinstance(step, Step):
            step.number, step.tokens, step.loss = number, tokens, loss
            if self._loss_comes_later:
                step.done = self._hold
            step.__exit__(None)
        self.begin()

    def _hold(self, step: Step, step_s: float) -> None:
        self._held = (step, step_s, time.time())

    def tell_loss(self, loss: Optional[float]) -> None:
        """Say the loss of the step that ended last, and report it."""
        if self._held is not None:
            self._held[0].loss = loss
        self.flush()

    def flush(self) -> None:
        """Report the step that waits for its loss, if one does."""
        held, self._held = self._held, None
        if held is not None:
            self.reporter.take(*held)


def guarded(hook: Any) -> Any:
    """Keep what goes wrong in a hook from the training that called it."""

    def safely(*args: Any, **kwargs: Any) -> None:
        try:
            hook(*args, **kwargs)
        except Exception as error:
            warn_once("a hook failed: %s", error)

    safely.__name__, safely.__doc__ = hook.__name__, hook.__doc__
    return safely


def plain_number(value: Any) -> Optional[float]:
    """Return a number that costs nothing to read; None for one that lies on a device."""
    is_near = getattr(getattr(value, "device", None), "type", "") == "cpu"
    return float(value) if isinstance(value, (int, float)) or is_near else None


def first_attribute(source: Any, *names: str) -> Any:
    """Return the first of some attributes that is set, None where none is."""
    for name in names:
        value = getattr(source, name, None)
        if value:
            return value
    return None
