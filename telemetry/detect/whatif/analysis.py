"""A recorded trace, from operations to verdict: laid out, replayed, explained."""

from dataclasses import dataclass

from telemetry.detect.whatif.explain import Explained, explained
from telemetry.detect.whatif.graph import graph_of
from telemetry.detect.whatif.grid import Grid, gridded
from telemetry.detect.whatif.steps import steps_of
from telemetry.detect.whatif.verdict import Verdict, verdict
from telemetry.steps import StepBatch
from telemetry.trace import Trace


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that is made of a trace."""

    grid: Grid
    steps: StepBatch
    found: Explained
    verdict: Verdict

    @property
    def culprits(self) -> tuple[str, ...]:
        """The names of the workers to blame, the worst first."""
        return tuple(
            self.steps.workers[dp * self.grid.n_stages + stage]
            for dp, stage in self.verdict.culprits
        )


def analysed(trace: Trace, *, run: str) -> Analysis:
    """Make steps of a trace, and say what slowed them down; steps end from second 0 on."""
    grid = gridded(trace)
    graph = graph_of(grid)
    steps = steps_of(grid, graph, run=run)
    found = explained(grid, graph)
    return Analysis(grid, steps, found, verdict(found, steps))
