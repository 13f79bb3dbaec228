"""Timing of one step and of its parts, as context managers."""

import time
from typing import Any, Callable, Optional

Record = tuple[Any, ...]
MAX_COLLECTIVES = 256
PARTS = ("input", "checkpoint", "other")


class TimedPart:
    """A timed part of a step; it may be entered many times, and the times add up."""

    __slots__ = ("_since_s", "seconds", "used")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.used = False
        self._since_s = 0.0

    def __enter__(self) -> "TimedPart":
        self._since_s = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds += time.perf_counter() - self._since_s
        self.used, self._since_s = True, 0.0

    @property
    def is_running(self) -> bool:
        return self._since_s > 0


class Collectives:
    """The gradient exchanges of a step, each with its duration and the Unix time of arrival."""

    __slots__ = ("_since_s", "arrived_at", "seconds")

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.arrived_at: list[float] = []
        self._since_s = 0.0

    def __enter__(self) -> "Collectives":
        self.arrived_at.append(time.time())
        self._since_s = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds.append(time.perf_counter() - self._since_s)
        if len(self.seconds) > MAX_COLLECTIVES:
            self.seconds, self.arrived_at = [sum(self.seconds)], self.arrived_at[:1]


class Step:
    """One optimizer step; a step that ends in an exception is not reported.

    ``tokens`` are those of the whole job in this step. ``loss`` is a plain number: do not read
    it from the device for this alone, because that would stall training.
    """

    __slots__ = (
        "_began_s",
        "_collectives",
        "_parts",
        "done",
        "is_running",
        "loss",
        "number",
        "tokens",
    )

    def __init__(self, number: int, done: "Callable[[Step, float], None]") -> None:
        self.number = number
        self.tokens: Optional[float] = None
        self.loss: Optional[float] = None
        self.done = done
        self._parts: Optional[list[Optional[TimedPart]]] = None
        self._collectives: Optional[Collectives] = None
        self._began_s = time.perf_counter()
        self.is_running = False

    def __enter__(self) -> "Step":
        self._began_s = time.perf_counter()
        self.is_running = True
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        self.is_running = False
        if kind is None:
            self.done(self, time.perf_counter() - self._began_s)

    @property
    def activity(self) -> str:
        """The part that is being timed, or step; other between steps: a script may save there."""
        for name, part in zip(PARTS, self._parts or ()):
            if part is not None and part.is_running:
                return name
        return "step" if self.is_running else "other"

    def collective(self) -> Collectives:
        """Time a gradient exchange that does not overlap with compute; call it for each one."""
        if self._collectives is None:
            self._collectives = Collectives()
        return self._collectives

    def input(self) -> TimedPart:
        return self._part(0)

    def checkpoint(self) -> TimedPart:
        return self._part(1)

    def other(self) -> TimedPart:
        """Time anything that is not training, such as an evaluation."""
        return self._part(2)

    def _part(self, place: int) -> TimedPart:
        if self._parts is None:
            self._parts = [None, None, None]
        part = self._parts[place]
        if part is None:
            part = self._parts[place] = TimedPart()
        return part

    def record(self, step_s: float, ended_at: float) -> Record:
        """Return the raw record; it is encoded later, in the sender's thread."""
        parts = (None, None, None) if self._parts is None else self._parts
        return (
            self.number,
            ended_at,
            step_s,
            self._collectives,
            [None if part is None else part.seconds for part in parts],
            None if self.tokens is None else float(self.tokens),
            None if self.loss is None else float(self.loss),
        )


class NoOpStep:
    """A step, or a part of one, in a process that does not report."""

    __slots__ = ("loss", "number", "tokens")

    def __init__(self) -> None:
        self.number = 0
        self.tokens: Optional[float] = None
        self.loss: Optional[float] = None

    def __enter__(self) -> "NoOpStep":
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def collective(self) -> "NoOpStep":
        return self

    def input(self) -> "NoOpStep":
        return self

    def checkpoint(self) -> "NoOpStep":
        return self

    def other(self) -> "NoOpStep":
        return self
