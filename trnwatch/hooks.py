"""Steps told by a framework's hooks: each lasts from the end of the one before to its own."""

import time
from typing import Any, Optional, Union

from trnwatch.complaints import complain
from trnwatch.reporter import Reporter
from trnwatch.steps import Idle, Step


class HookedSteps:
    """Times steps by the moments at which a framework calls; nothing is lost between two steps.

    What a hook marks is the stretch since the mark before: waiting for data ends when a step
    begins, writing a checkpoint when the framework says that it is written.
    """

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self._step: Union[Step, Idle, None] = None
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

    def end(self, number: int, tokens: Optional[float] = None) -> None:
        """End the step under way, and begin the next."""
        step, self._step = self._step, None
        if isinstance(step, Step):
            step.number, step.tokens = number, tokens
            step.__exit__(None)
        self.begin()


def guarded(hook: Any) -> Any:
    """Keep what goes wrong in a hook from the training that called it."""

    def safely(*args: Any, **kwargs: Any) -> None:
        try:
            hook(*args, **kwargs)
        except Exception as error:
            complain("a hook failed: %s", error)

    safely.__name__, safely.__doc__ = hook.__name__, hook.__doc__
    return safely


def figure(source: Any, *names: str) -> Any:
    """Return the first of some attributes that is set, None where none is."""
    for name in names:
        value = getattr(source, name, None)
        if value:
            return value
    return None
