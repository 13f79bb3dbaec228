"""What workers say in their heartbeats that they do while no step ends."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from telemetry.detect.inputs import DetectionInput

# A worker with no steps to report sends a heartbeat this often. One that misses two of those that
# others sent is dead.
HEARTBEAT_S, DEAD_S = 10.0, 22.0
# Times of steps are those of the workers' clocks, which may be off by this much.
CLOCKS_S = 2.0
MOST = 0.5
STEP, INPUT, CHECKPOINT, OTHER, COMPILE = "step", "input", "checkpoint", "other", "compile"


@dataclass(frozen=True, slots=True)
class Activities:
    """``doing``: each node's activity, ``since_s`` when the last of them began; ``dead`` nodes."""

    doing: Mapping[str, str]
    since_s: Mapping[str, float]
    dead: tuple[str, ...]

    @property
    def common(self) -> str:
        """What most of the nodes do; empty where no activity is that common."""
        name, n_nodes = Counter(self.doing.values()).most_common(1)[0]
        return name if n_nodes > MOST * len(self.doing) else ""

    def lasts_s(self, now_s: float) -> float:
        """Seconds since the newest of the common activities began; 0 where none is common."""
        name = self.common
        began_s = (since for node, since in self.since_s.items() if self.doing[node] == name)
        return now_s - max(began_s, default=now_s)


def activities(inputs: DetectionInput, since_s: float) -> Activities | None:
    """Return what the nodes of a run do since its last step ended; None where none has said.

    Of several workers on a node the one that said most recently counts.
    """
    if inputs.workers is None:
        return None
    newest = {
        state.node: state for state in sorted(inputs.workers().values(), key=lambda s: s.heard_s)
    }
    heard_s = max((state.heard_s for state in newest.values()), default=0.0)
    known = {
        node: state
        for node, state in newest.items()
        if state.activity and state.heard_s > since_s + CLOCKS_S and node in inputs.nodes
    }
    if not known:
        return None
    return Activities(
        doing={node: state.activity for node, state in known.items()},
        since_s={node: max(state.since_s, since_s) for node, state in known.items()},
        dead=tuple(
            node
            for node, state in newest.items()
            if heard_s - state.heard_s > DEAD_S and node in inputs.nodes
        ),
    )
