"""Finds training steps in the executions of a core: the pattern of graphs that repeats."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Optional

from trnwatch.runtime_trace import Execution

# A pattern is believed when this many executions, and this many repeats of it, were seen.
MIN_EXECUTIONS = 24
MIN_REPEATS = 3
MAX_PATTERN = 512
# A longer pause after a step is not part of it, such as an evaluation on the host.
MAX_PAUSE_S = 30.0
# An evaluation repeats graphs too, but not for this long.
FORGET_AFTER_S = 600.0

FoundStep = tuple[int, float, float]


class StepFinder:
    """Turns executions into steps.

    With gradient accumulation a step executes several graphs, the optimizer's last. Executions
    that do not fit the pattern, such as an evaluation's, belong to no step.
    """

    def __init__(self) -> None:
        self._executions: list[Execution] = []
        self._pattern: tuple[Any, ...] = ()
        self._next = 1
        self._fitted_at_s = float("inf")

    def take(self, executions: Iterable[Execution]) -> list[FoundStep]:
        """Return the completed steps: (number, began at, ended at) in Unix seconds.

        A step ends when the next one begins. Numbers follow the runtime's own count of
        executions where it has one, so that workers of the same job agree on them.
        """
        self._executions += executions
        if not self._pattern:
            if len(self._executions) < MIN_EXECUTIONS:
                return []
            self._pattern = repeated_pattern([model for _, _, model, _ in self._executions])
            if not self._pattern:
                del self._executions[: -MIN_REPEATS * MAX_PATTERN]
                return []
            self._fitted_at_s = self._executions[-1][1]
        return self._steps()

    def _steps(self) -> list[FoundStep]:
        steps, length, place = [], len(self._pattern), 0
        known = self._executions
        while place + length < len(known):
            models = tuple(model for _, _, model, _ in known[place : place + length])
            if models != self._pattern:
                place += 1
                continue
            last_ended_s, next_began_s = known[place + length - 1][1], known[place + length][0]
            ended_s = next_began_s if next_began_s < last_ended_s + MAX_PAUSE_S else last_ended_s
            steps.append((self._number(known[place][3]), known[place][0], ended_s))
            place += length
            self._fitted_at_s = ended_s
        if known[-1][1] > self._fitted_at_s + FORGET_AFTER_S:
            # The job runs other graphs now, for instance after a recompilation.
            self._pattern = ()
        del known[:place]
        return steps

    def _number(self, execution: Optional[int]) -> int:
        counted = 0 if execution is None else execution // len(self._pattern)
        number = max(self._next, counted)
        self._next = number + 1
        return number


def repeated_pattern(models: Sequence[Any]) -> tuple[Any, ...]:
    """Return the shortest sequence that the models repeat at their end, the rarest model last.

    Empty if none repeats MIN_REPEATS times.
    """
    for length in range(1, min(MAX_PATTERN, len(models) // MIN_REPEATS) + 1):
        n_checked = max(MIN_REPEATS * length, MIN_EXECUTIONS)
        end = models[-n_checked:]
        if len(end) >= n_checked and all(
            end[place] == end[place - length] for place in range(length, len(end))
        ):
            pattern = list(end[-length:])
            counts = Counter(pattern)
            rarest = max(
                i for i, model in enumerate(pattern) if counts[model] == min(counts.values())
            )
            return (*pattern[rarest + 1 :], *pattern[: rarest + 1])
    return ()
