"""Step timing by a framework's hooks: a step lasts from the previous end to its own."""

import time
from typing import Any, Optional, Union

from trnwatch.log import warn_once
from trnwatch.reporter import Reporter
from trnwatch.steps import NoOpStep, Step


class HookedSteps:
    """Times steps by the moments of a framework's hooks, without gaps between steps.

    A mark assigns the time since the previous mark to a part of the step: waiting for data
    ends when a step begins, a checkpoint when the framework has written it.
    """

    def __init__(self, reporter: Reporter, *, loss_comes_later: bool = False) -> None:
        """With ``loss_comes_later`` a step is reported when its loss or the next step comes."""
        self.reporter = reporter
        reporter.await_suggestions()
        self._loss_comes_later = loss_comes_later
        self._waiting: Optional[tuple[Step, float, float]] = None
        self._step: Union[Step, NoOpStep, None] = None
        self._mark_s = 0.0

    def set_activity(self, activity: str) -> None:
        """Set what the worker does from now on; heartbeats report it while no step ends."""
        self.reporter.hooked_activity = activity

    def begin(self) -> None:
        """Begin a step unless one is running; the time before the first step is not training."""
        if self._step is None:
            self._step = self.reporter.step()
            self._step.__enter__()
            self._mark_s = time.perf_counter()

    def mark(self, part: str) -> None:
        """Assign the time since the last mark to ``part``: input, checkpoint or other."""
        now_s, step = time.perf_counter(), self._step
        if isinstance(step, Step):
            timed = getattr(step, part)()
            timed.seconds += now_s - self._mark_s
        self._mark_s = now_s

    def skip(self) -> None:
        """Count the time since the last mark as compute."""
        self._mark_s = time.perf_counter()

    def end(
        self, number: int, tokens: Optional[float] = None, loss: Optional[float] = None
    ) -> None:
        """End the running step and begin the next."""
        self.flush()
        step, self._step = self._step, None
        if isinstance(step, Step):
            step.number, step.tokens, step.loss = number, tokens, loss
            if self._loss_comes_later:
                step.done = self._wait_for_loss
            step.__exit__(None)
        self.begin()

    def _wait_for_loss(self, step: Step, step_s: float) -> None:
        self._waiting = (step, step_s, time.time())

    def set_loss(self, loss: Optional[float]) -> None:
        """Report the last ended step with this loss."""
        if self._waiting is not None:
            self._waiting[0].loss = loss
        self.flush()

    def flush(self) -> None:
        """Report the step that waits for its loss, if any."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self.reporter.take(*waiting)

    def finish(self, *, failed: bool = False, reason: str = "") -> None:
        """Report the end; what comes next, until another training begins, is no step."""
        self.flush()
        self._step = None
        self.reporter.finish(failed=failed, reason=reason)


def guarded(hook: Any) -> Any:
    """Wrap a hook so that its exceptions are logged once and never reach training."""

    def safely(*args: Any, **kwargs: Any) -> None:
        try:
            hook(*args, **kwargs)
        except Exception as error:
            warn_once("a hook failed: %s", error)

    safely.__name__, safely.__doc__ = hook.__name__, hook.__doc__
    return safely


def plain_number(value: Any) -> Optional[float]:
    """Return a number if it can be read without waiting for a device, else None."""
    is_near = getattr(getattr(value, "device", None), "type", "") == "cpu"
    return float(value) if isinstance(value, (int, float)) or is_near else None


def first_attribute(source: Any, *names: str) -> Any:
    for name in names:
        value = getattr(source, name, None)
        if value:
            return value
    return None
