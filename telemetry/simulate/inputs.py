"""Which telemetry reaches us: input tiers, and the inputs that each one has.

What happens in a simulated run does not depend on the tier. The tier decides what of it is
observed (``telemetry.simulate.observation``). Detection does not know the tier.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from telemetry.errors import FieldError

Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
Collective = Literal["every_step", "every_20", "none"]
# With collectives timed in every twentieth step, all workers time the same ones.
SPARSE_STEPS = 20


class Inputs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The inputs of one run; see docs/drills.md for each.

    ``agent`` and ``agent_every_s`` are the node's reports. ``is_scraped``: instead of an agent, a
    Prometheus scrapes neuron-monitor's exporter and node_exporter and sends on what it has.
    ``counters`` are FLOPs per core and execution latencies, as neuron-monitor reports them.
    ``step_reports`` come every ``report_every_s`` from clocks that are off by up to
    ``clock_skew_s``; ``lost_ratio`` of them never come. ``probe_every_s`` 0: no EFA probe but,
    with ``probe_on_request``, those that alerts ask agents for. ``trace_on_request``: workers read
    the runtime's trace while an alert asks for it.
    ``busy_while_waiting`` belongs to the hardware: whether a core that waits in a collective
    counts as busy.
    """

    tier: str = "full"
    agent: bool = True
    agent_every_s: int = 1
    is_scraped: bool = False
    hbm_bandwidth: bool = True
    power: bool = True
    counters: bool = True
    probe_every_s: Seconds = 1
    probe_on_request: bool = False
    step_reports: bool = True
    runtime_trace: bool = False
    trace_on_request: bool = False
    collective: Collective = "every_step"
    report_every_s: Seconds = 0
    clock_skew_s: Annotated[float, msgspec.Meta(ge=0, le=2)] = 0
    lost_ratio: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0
    busy_while_waiting: bool = True

    @property
    def is_full(self) -> bool:
        """Whether everything is observed as it is, each second."""
        return all(getattr(self, name) == getattr(FULL, name) for name in OBSERVED)


FULL = Inputs()
# What the live fleet is played with. Power and counters would double what is stored.
LIVE = msgspec.structs.replace(FULL, power=False, counters=False)
# A tier with these changed keeps its name.
APART = frozenset({"busy_while_waiting", "probe_on_request", "trace_on_request"})
OBSERVED = frozenset(Inputs.__struct_fields__) - {"tier", "power", "counters"} - APART


def _tier(tier: str, **inputs: Any) -> Inputs:
    """Build a tier of real nodes: no HBM bandwidth, step reports by clocks that differ."""
    usual: dict[str, Any] = {
        "hbm_bandwidth": False,
        "probe_every_s": 0,
        "collective": "none",
        "report_every_s": 1,
        "clock_skew_s": 2,
    }
    return Inputs(tier=tier, **usual | inputs)


# The tiers of real fleets, from most to least telemetry.
TIERS: Mapping[str, Inputs] = {
    each.tier: each
    for each in (
        FULL,
        _tier("agent_collectives", collective="every_step"),
        _tier("agent_trace", agent_every_s=5, runtime_trace=True),
        _tier("agent_hooks", agent_every_s=5, probe_every_s=60),
        _tier("hooks_only", agent=False, power=False),
        _tier("agent_only", agent_every_s=5, step_reports=False),
        _tier(
            "prometheus_15s", agent_every_s=15, is_scraped=True, power=False, step_reports=False
        ),
    )
}


def tier_named(name: str, **apart: bool) -> Inputs:
    """Return the inputs of a tier, with those of APART as given. FieldError: it is unknown."""
    if name not in TIERS:
        raise FieldError("tier", f"{name!r} is no input tier; choose one of {', '.join(TIERS)}")
    return msgspec.structs.replace(TIERS[name], **apart)


def live_inputs(tier: str) -> Inputs:
    """Return the inputs of a run of the live fleet; an empty tier observes everything."""
    return tier_named(tier) if tier else LIVE
