"""The registry of rules: limits, texts and PromQL."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["page", "warn"]
Subject = Literal["run", "node", "fleet", "budget"]
# What makes one observation of a rule worse than another: its score, or a figure that is easier
# to understand.
Merit = Literal["score", "share", "slowdown", "phase", "duration"]
# What a rule reads: steps of a run or hardware of a node; the hosts of a run without steps;
# what does not arrive; counts of errors and states of devices; or records in the database, for
# which another task evaluates it.
Reads = Literal["measurements", "hosts", "silence", "counts", "records"]
# The figures whose ratio is a merit; the second one may be missing.
MERITS: Mapping[str, tuple[str, str | None]] = {
    "share": ("share_ratio", None),
    "slowdown": ("step_s", "baseline_step_s"),
    "phase": ("phase_s", "baseline_phase_s"),
}
# One or two scrapes may fail. Missing series do not resolve an alert.
KEEP_S = 120.0
LIMIT = re.compile(r"<(\w+)>")


@dataclass(frozen=True, slots=True)
class Query:
    """The PromQL of a rule.

    In ``expr`` and ``description``, `<name>` is replaced by that limit. ``description``
    follows the help of the rule, with Prometheus templates. The alert is pending for ``for_s``
    seconds and stays for ``keep_s`` after the last evidence: a number, or the name of a limit.
    ``severity`` defaults to that of the rule.
    """

    expr: str
    description: str
    for_s: float | str = 0.0
    keep_s: float | str = KEEP_S
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule; ``subject`` is what its alerts are about.

    ``limits`` are the thresholds, with units in their names; detection, PromQL or both use them.
    ``falls_short`` is what PromQL misses, or why there is none. ``needs`` is what must reach us
    so that it can fire. ``merit`` decides which of its observations was the worst. ``own_limit``
    is the limit that a run may have of its own, and the two figures whose ratio it limits; the
    second one may be missing.

    The others are traits, by which its alerts are related to others:

    ``reads`` : what must be there to evaluate it
    ``is_symptom`` : any fault may show in it, so its cause and place are found separately
    ``slows_steps`` : steps take longer, or none ends
    ``is_standstill`` : no step ends, and its evidence has the time of the last one
    ``waits`` : it measures how long workers take, so others may wait for an accused one
    ``wastes_time`` : it slows no step, but a token costs more
    ``explains_itself`` : its headline or opening names the cause and its figure
    ``charts_loss`` : the training loss shows it
    ``uneven_quiet_s`` : uneven sequences come and go; it stays open for so long without a finding
    """

    name: str
    title: str
    severity: Severity
    subject: Subject
    help: str
    limits: Mapping[str, float] = field(default_factory=dict)
    queries: tuple[Query, ...] = ()
    falls_short: str = ""
    needs: str = ""
    merit: Merit = "score"
    own_limit: tuple[str, str, str | None] | None = None
    reads: Reads = "measurements"
    is_symptom: bool = False
    slows_steps: bool = False
    is_standstill: bool = False
    waits: bool = False
    wastes_time: bool = False
    explains_itself: bool = False
    charts_loss: bool = False
    uneven_quiet_s: float = 0.0

    @property
    def severities(self) -> frozenset[Severity]:
        """What its alerts can be: each can be a warning, if it is about a spare node or vague."""
        named = (query.severity or self.severity for query in self.queries)
        return frozenset({"warn", self.severity, *named})

    @property
    def is_slow_run(self) -> bool:
        """Whether it says that steps take longer, whatever the reason."""
        return self.is_symptom and not self.is_standstill

    @property
    def explains_cost(self) -> bool:
        """Whether a token costs more while it fires."""
        return self.slows_steps or self.wastes_time

    @property
    def runbook(self) -> str:
        """Path of the runbook."""
        return f"docs/runbooks/{self.name}.md"

    def filled(self, text: str) -> str:
        """Insert limits into a text. An unknown name is an error."""
        return LIMIT.sub(lambda found: f"{self.limits[found[1]]:.12g}", text)

    def merit_of(self, evidence: Mapping[str, Any], *, lasted_s: float) -> float:
        """Return the figure of merit of evidence, the worse the larger; 0 where it is unknown."""
        if self.merit == "duration":
            return lasted_s
        over, under = MERITS.get(self.merit, ("", None))
        figure, usual = evidence.get(over), evidence.get(under) if under else 1.0
        return figure / usual if figure and usual else 0.0

    def seconds(self, given: float | str) -> float:
        """Return a duration, or the limit of that name."""
        return self.limits[given] if isinstance(given, str) else given


# The ratio is recorded, by run and by the basis of the expected cost.
DRIFT = """
(
  run:trnwatch_cost_drift_ratio:min2h{basis="estimate"} > <estimate_ratio>
  or
  run:trnwatch_cost_drift_ratio:min2h{basis="own"} > <own_ratio>
  or
  (
    run:trnwatch_cost_drift_ratio:min2h{basis="estimate"} > <estimate_ratio> * <half_ratio>
    or
    run:trnwatch_cost_drift_ratio:min2h{basis="own"} > <own_ratio> * <half_ratio>
  )
  and on (run) ALERTS{alertname="cost_drift", alertstate="firing"}
)
unless on (run) run:trnwatch_alerts_explaining:sum > 0
"""
OVERRUN = """
budget:trnwatch_budget_forecast_ratio:max > 1
or
budget:trnwatch_budget_forecast_ratio:max > <calm_ratio>
  and on (budget) ALERTS{alertname="budget_overrun", alertstate="firing"}
"""

MONEY = (
    Rule(
        "cost_drift",
        "Tokens cost more than expected",
        "warn",
        "run",
        "For hours tokens have cost more than the estimate for the run, or than in similar runs. "
        "If its model is unknown, the run's own first settled hours count.",
        {
            "window_s": 7200.0,
            "least_minutes": 40,
            # Above the error of 9 in 10 published Trainium runs (step_model.SPREADS).
            "estimate_ratio": 0.50,
            "own_ratio": 0.15,
            "half_ratio": 0.7,
            "alike_ratio": 0.02,
        },
        (
            Query(
                DRIFT, "It is {{ $value | humanizePercentage }} more, by its {{ $labels.basis }}."
            ),
        ),
        "Checkpoints and evaluations count as work; excluded workers count as paid nodes. Time "
        "that an alert explains is left out from its firing on, not from its onset.",
        reads="records",
        explains_itself=True,
        needs="steps that report tokens, for two hours",
    ),
    Rule(
        "budget_overrun",
        "Budget will be overrun",
        "warn",
        "budget",
        "At the current pace and the announced prices, spending will exceed the budget.",
        {"calm_ratio": 0.98},
        (Query(OVERRUN, "It comes to {{ $value | humanizePercentage }} of it."),),
        "The forecast is trnwatch's own, as of the latest scrape.",
        reads="records",
        explains_itself=True,
        needs="a budget, and the prices of its runs",
    ),
)


ERRORS = """
sum by (node) (rate(trnwatch_node_execution_errors_total[2m])) >= <least_per_s>
or
sum by (node) (rate(trnwatch_node_executions_failed_total[2m])) >= <least_per_s>
"""
MANY_ERRORS = """
sum by (node) (rate(trnwatch_node_execution_errors_total[2m])) >= <page_per_s>
or
sum by (node) (rate(trnwatch_node_executions_failed_total[2m])) >= <page_per_s>
or
sum by (node) (rate(trnwatch_node_executions_failed_total[2m])) >= <least_per_s>
  and on (node) (
    sum by (node) (rate(trnwatch_node_executions_failed_total[2m]))
    / on (node) (
      sum by (node) (rate(trnwatch_node_executions_failed_total[2m]))
      + on (node) sum by (node) (rate(trnwatch_node_executions_completed_total[2m]))
    ) >= <page_ratio>
  )
"""
IDLE = """
node:trnwatch_core_utilization_ratio:max < <idle_ratio>
and on (run) trnwatch_run_info{phase="training"}
and on (run) rate(trnwatch_run_steps_total[10m]) > 0
"""
# Without any reporting node, monitoring_blind replaces this rule.
SILENT = """
max by (node) (trnwatch_node_up)
  * on (node) group_left (run) node:trnwatch_run:info{run!=""} == 0
and on () (max(trnwatch_node_up) > 0 or count(trnwatch_node_up) < <enough_nodes>)
"""
SILENT_SPARE = """
max by (node) (trnwatch_node_up) == 0
and on (node) trnwatch_node_info{run=""}
and on () (max(trnwatch_node_up) > 0 or count(trnwatch_node_up) < <enough_nodes>)
"""
MEMORY = """
label_replace(
  increase(trnwatch_device_mem_ecc_uncorrected_total[<window_s>s]), "memory", "hbm", "", ""
) > 0
or
label_replace(
  increase(trnwatch_device_sram_ecc_uncorrected_total[<window_s>s]), "memory", "sram", "", ""
) > 0
"""
UNHEALTHY = """
max by (node, device) (trnwatch_device_unhealthy)
  * on (node) group_left (run) node:trnwatch_run:info{run!=""} > 0
"""
UNHEALTHY_SPARE = """
max by (node, device) (trnwatch_device_unhealthy) > 0
and on (node) trnwatch_node_info{run=""}
"""
BLIND = "max(trnwatch_node_up) == 0 and count(trnwatch_node_up) >= <enough_nodes>"
PER_S = "{{ $value | humanize }} errors per second."

NODES = (
    Rule(
        "exec_errors",
        "Executions fail",
        "page",
        "node",
        "Graph executions on a node fail, or its runtime reports errors.",
        {"least_per_s": 1 / 60, "page_ratio": 0.01, "page_per_s": 1.0},
        (Query(ERRORS, PER_S, severity="warn"), Query(MANY_ERRORS, PER_S)),
        "It also fires for memory errors that ecc_uncorrected explains.",
        needs="execution counts of nodes",
    ),
    Rule(
        "node_idle",
        "Node idles",
        "warn",
        "node",
        "A node belongs to a run that is training, but its cores are idle.",
        {"idle_ratio": 0.05, "idle_s": 600.0},
        (Query(IDLE, "No core is above {{ $value | humanizePercentage }}.", for_s="idle_s"),),
        "A node that was excluded from steps on purpose counts as idle.",
        wastes_time=True,
        needs="core utilization of nodes",
    ),
    Rule(
        "node_silent",
        "Node silent",
        "page",
        "node",
        "A node stopped reporting. Training on it may or may not continue.",
        {"quiet_s": 15.0, "works_s": 30.0, "enough_nodes": 2},
        (
            Query(SILENT, "It has been silent for more than <quiet_s> s."),
            Query(SILENT_SPARE, "Silent for more than <quiet_s> s.", severity="warn"),
        ),
        "It cannot distinguish a crashed node from missing telemetry.",
        reads="silence",
        slows_steps=True,
        explains_itself=True,
        needs="nodes that report",
    ),
    Rule(
        "ecc_uncorrected",
        "Uncorrected ECC error",
        "page",
        "node",
        "An accelerator counted memory errors it could not correct: results may be wrong.",
        {"window_s": 600.0, "hold_s": 480.0},
        (
            Query(
                MEMORY,
                "Device {{ $labels.device }} counted {{ $value | humanize }} in "
                "{{ $labels.memory }} within <window_s> s.",
                keep_s="hold_s",
            ),
        ),
        "It resolves <hold_s> s after the last error left the window of <window_s> s, however far "
        "apart the errors are.",
        reads="counts",
        explains_itself=True,
        needs="memory error counts of nodes",
    ),
    Rule(
        "device_unhealthy",
        "Unhealthy device",
        "page",
        "node",
        "A health check of the vendor rejects an accelerator: work on it fails or may be wrong.",
        {"state_s": 120.0},
        (
            Query(UNHEALTHY, "Device {{ $labels.device }} is reported as unhealthy."),
            Query(
                UNHEALTHY_SPARE,
                "Device {{ $labels.device }} is reported as unhealthy.",
                severity="warn",
            ),
        ),
        "It has one alert per device.",
        reads="counts",
        explains_itself=True,
        needs="device health of nodes",
    ),
    Rule(
        "device_missing",
        "A device no longer reports",
        "page",
        "node",
        "Some accelerators of a node no longer report, while the others do: the driver lost them.",
        falls_short="No series says how many devices a node had before.",
        reads="counts",
        explains_itself=True,
        needs="hardware of nodes, by device",
    ),
    Rule(
        "monitoring_blind",
        "Monitoring is blind",
        "page",
        "fleet",
        "No node reports. The monitoring is more likely broken than the whole fleet.",
        {"enough_nodes": 2},
        (Query(BLIND, "None of the nodes reports."),),
        "If trnwatch itself is down, `trnwatch_scrape_down` and `trnwatch_absent` fire.",
        reads="silence",
        explains_itself=True,
        needs="two nodes or more that report",
    ),
)


# Of PromQL: required distance from the same part of other nodes, with at least so many nodes.
APART = {"blatant_ratio": 0.10, "enough_nodes": 3}
# Each part over the usual one of its node, over two minutes, with the run of the node.
# Both are means of the same scrapes, so a step seen by only one is no difference.
CORE = """
avg_over_time(trnwatch_core_utilization_ratio[2m])
  / on (node) group_left ()
    (quantile by (node) (0.5, avg_over_time(trnwatch_core_utilization_ratio[2m])) > 0)
  * on (node) group_left (run) node:trnwatch_run:info{run!=""}
"""
PARTS_MEMORY = """
avg_over_time(trnwatch_device_hbm_bandwidth_bytes_per_second[2m])
  / on (node) group_left () (
    quantile by (node) (0.5, avg_over_time(trnwatch_device_hbm_bandwidth_bytes_per_second[2m]))
    >= <awake_bytes_per_s>
  )
  * on (node) group_left (run) node:trnwatch_run:info{run!=""}
"""
LATENCY = """
avg_over_time(trnwatch_efa_latency_seconds[2m])
  * on (node) group_left (run) node:trnwatch_run:info{run!=""}
"""
ENOUGH_NODES = 'count by (run) (node:trnwatch_run:info{run!=""}) >= <enough_nodes>'


def _in_lines(part: str, indent: int) -> str:
    return part.strip().replace("\n", "\n" + " " * indent)


CORES = f"""
(
  {_in_lines(CORE, 2)}
)
/ on (run, core) group_left () quantile by (run, core) (0.5,
  {_in_lines(CORE, 2)}
)
>= 1 + <blatant_ratio>
and on (node) node:trnwatch_core_utilization_ratio:max >= <awake_ratio>
and on (run) ({ENOUGH_NODES})
"""
MEMORIES = f"""
(
  {_in_lines(PARTS_MEMORY, 2)}
)
/ on (run, device) group_left () quantile by (run, device) (0.5,
  {_in_lines(PARTS_MEMORY, 2)}
)
<= 1 / (1 + <blatant_ratio>)
and on (run) ({ENOUGH_NODES})
"""
LOST = """
efa:trnwatch_efa_retransmit_ratio:avg2m >= <loss_ratio>
and on (node, device) avg_over_time(trnwatch_efa_retransmits_per_second[2m]) * 120 >= <least_again>
and efa:trnwatch_efa_retransmit_ratio:avg2m
  > on (run) group_left ()
    2 * quantile by (run) (0.5, efa:trnwatch_efa_retransmit_ratio:avg2m)
"""
DOWN = """
(
  avg_over_time(trnwatch_efa_tx_bytes_per_second[2m])
    < on (node) group_left ()
      <dead_ratio> * (
        quantile by (node) (0.5, avg_over_time(trnwatch_efa_tx_bytes_per_second[2m]))
        >= <at_work_bytes_per_s>
      )
  and
  max_over_time(trnwatch_efa_tx_bytes_per_second[1h])
    > on (node) group_left ()
      <dead_ratio> * quantile by (node) (0.5, avg_over_time(trnwatch_efa_tx_bytes_per_second[2m]))
)
* on (node) group_left (run) node:trnwatch_run:info{run!=""}
"""
LATE = f"""
(
  {_in_lines(LATENCY, 2)}
)
/ on (run) group_left () quantile by (run) (0.5,
  {_in_lines(LATENCY, 2)}
)
>= <blatant_latency_ratio>
"""
EFA = f"""
label_replace(
  {_in_lines(LOST, 2)}
  , "kind", "loss", "", "")
or
label_replace(
  {_in_lines(DOWN, 2)}
  , "kind", "down", "", "")
or
label_replace(
  {_in_lines(LATE, 2)}
  , "kind", "latency", "", "")
"""
# The unit of the value depends on the kind.
KINDS = (
    "Device {{ $labels.device }} "
    '{{ if eq $labels.kind "loss" }}retransmits {{ $value | humanizePercentage }} of its packets'
    '{{ else if eq $labels.kind "down" }}sends only {{ $value | humanize }} bytes per second'
    "{{ else }}has {{ $value | humanize }} times the usual latency{{ end }}."
)

PARTS = (
    Rule(
        "core_slow",
        "Core or accelerator computes slowly",
        "page",
        "node",
        "A core, or all cores of an accelerator, stay busy while the rest of the node waits.",
        {
            "awake_ratio": 0.08,
            **APART,
        },
        (
            Query(
                CORES,
                "Core {{ $labels.core }} is {{ $value | humanize }} times as busy as usual.",
                for_s=60,
            ),
        ),
        "It fires if a core is busier by a ratio of <blatant_ratio> than the same core of other "
        "nodes, in runs of at least <enough_nodes> nodes. It misses smaller changes against the "
        "core's own past and cannot distinguish a core from a throttled accelerator.",
        merit="slowdown",
        slows_steps=True,
        waits=True,
        needs="utilization of each core",
    ),
    Rule(
        "hbm_slow",
        "Low HBM bandwidth",
        "page",
        "node",
        "An accelerator reads and writes its memory more slowly than its peers.",
        {"awake_bytes_per_s": 1e8, **APART},
        (
            Query(
                MEMORIES,
                "Device {{ $labels.device }} moves {{ $value | humanizePercentage }} of "
                "the usual bytes.",
                for_s=60,
            ),
        ),
        "As for core_slow. Real nodes report one estimate for all "
        "devices, so it never fires for them.",
        merit="slowdown",
        slows_steps=True,
        waits=True,
        needs="HBM bandwidth of each device, which real nodes do not report",
    ),
    Rule(
        "efa_degraded",
        "EFA device degraded",
        "page",
        "node",
        "An EFA device has high latency, loses packets, or carries no traffic.",
        {
            "loss_ratio": 2e-4,
            "least_again": 5,
            "dead_ratio": 0.05,
            "at_work_bytes_per_s": 1e3,
            "blatant_latency_ratio": 1.3,
        },
        (Query(EFA, KINDS, for_s=60),),
        "Its label `kind` is loss, down or latency. It fires from "
        "<blatant_latency_ratio> times the run's usual latency. It misses smaller changes against "
        "the device's own past, and a fabric that is slow as a whole.",
        merit="slowdown",
        slows_steps=True,
        needs="EFA counters of nodes; for latency, EFA probes",
    ),
)


# Hosts and cores during a standstill: above the first limit a core computes or moves bytes, above
# the others a host compiles, or reads and writes.
ACTIVITY = {"working_ratio": 0.15, "compiling_ratio": 0.45, "loading_ratio": 0.2}
# The store drops the steps of a run after a while; Prometheus still has the time of the last one.
HANG = """
(time() - max by (run) (last_over_time(trnwatch_run_last_step_timestamp_seconds[1d])))
  > on (run) clamp_min(
    <patience_steps> * max by (run) (last_over_time(trnwatch_run_step_seconds[1d])), <patience_s>
  )
and on (run) trnwatch_run_info{phase="training"}
and on (run) run:trnwatch_core_utilization_ratio:max < <working_ratio>
and on (run) run:trnwatch_node_vcpu_usage_ratio:max < <loading_ratio>
"""
RECOMPILE = """
avg by (run) (
  (trnwatch_node_vcpu_usage_ratio >= bool <compiling_ratio>)
  * on (node) group_left (run) node:trnwatch_run:info{run!=""}
) > <most_ratio>
and on (run) trnwatch_run_info{phase="training"}
and on (run) run:trnwatch_core_utilization_ratio:max < <working_ratio>
"""

STANDSTILL = (
    Rule(
        "hang",
        "Run hangs",
        "page",
        "run",
        "No step completes, although the run reports the phase training.",
        {
            "late_steps": 1.5,
            "late_s": 10.0,
            "first_s": 90.0,
            "patience_steps": 8.0,
            "patience_s": 30.0,
            "stall_s": 80.0,
            **ACTIVITY,
        },
        (Query(HANG, "The last step ended {{ $value | humanizeDuration }} ago.", 30),),
        "It waits for <patience_steps> step times, however long these are. It does not name the "
        "node that did not join. A host whose threads spin above <loading_ratio> of its vCPUs "
        "counts as working.",
        merit="duration",
        own_limit=("late_s", "overdue_s", None),
        reads="silence",
        is_symptom=True,
        slows_steps=True,
        is_standstill=True,
        needs="steps or their heartbeats, or core utilization of nodes",
    ),
    Rule(
        "recompile",
        "Unexpected recompilation",
        "warn",
        "run",
        "The run is stopped by a recompilation that was not announced.",
        {"certain_s": 5, "most_ratio": 0.5, "page_after_s": 600.0, **ACTIVITY},
        (
            Query(RECOMPILE, "{{ $value | humanizePercentage }} of its hosts compile.", 30),
            Query(
                RECOMPILE,
                "{{ $value | humanizePercentage }} of its hosts have been compiling for long.",
                for_s="page_after_s",
                severity="page",
            ),
        ),
        "It misses compilations shorter than half a minute and does not measure their cost.",
        reads="hosts",
        slows_steps=True,
        is_standstill=True,
        explains_itself=True,
        needs="core and host utilization of nodes, or compiles that the job reports",
    ),
)


STARTS = (
    Rule(
        "preflight",
        "Started without a preflight",
        "warn",
        "run",
        "A run that requires a preflight began without a pass of its nodes younger than a day.",
        {"good_for_s": 86_400.0},
        falls_short="No series has the results of preflights, or which runs require one.",
        reads="records",
        explains_itself=True,
        needs="a run that requires a preflight",
    ),
    Rule(
        "workers_missing",
        "Workers have not arrived",
        "warn",
        "run",
        "Some of the workers that a run announced have never reported since it started.",
        # Launchers start all workers together, and each sends heartbeats from its start on, also
        # while it compiles. Half of the 600 s after which torch gives up by default (torchrun's
        # join timeout, NCCL's process group): there is time to act.
        {"arrive_s": 300.0},
        falls_short="No series says how many workers a run announced.",
        reads="silence",
        explains_itself=True,
        needs="reports of workers that say how many there are",
    ),
)


# Values are means of the last minute of the run; several web servers may export the same series.
SHARE = """
max by (run) (trnwatch_run_allreduce_share_ratio)
  > on (run) max by (run) (trnwatch_run_allreduce_limit_ratio)
or
max by (run) (trnwatch_run_allreduce_share_ratio)
  >= on (run) max by (run) (trnwatch_run_allreduce_resolve_ratio)
  and on (run) ALERTS{alertname="allreduce_share", alertstate="firing"}
or
max by (run) (last_over_time(trnwatch_run_allreduce_share_ratio[1d]))
  and on (run) trnwatch_run_info{phase!~"finished|failed"}
  and on (run) ALERTS{alertname="allreduce_share", alertstate="firing"}
  unless on (run) trnwatch_run_allreduce_share_ratio
"""
# The usual value is the median of six hours until ten minutes ago.
SLOW = """
(
  max by (run) (trnwatch_run_step_seconds)
    > on (run) (1 + <unknown_ratio>) * max by (run) (
      quantile_over_time(0.5, trnwatch_run_step_seconds[6h] offset 10m)
    )
  or
  max by (run) (trnwatch_run_step_seconds)
    > on (run) (1 + <unknown_ratio> * <half_ratio>) * max by (run) (
      quantile_over_time(0.5, trnwatch_run_step_seconds[6h] offset 10m)
    )
    and on (run) ALERTS{alertname="step_slow", alertstate="firing"}
)
and on (run) (
  max by (run) (trnwatch_run_tokens_per_second)
    < on (run) max by (run) (
      quantile_over_time(0.5, trnwatch_run_tokens_per_second[6h] offset 10m)
    )
)
and on (run) trnwatch_run_info{phase="training"}
"""

STEPS = (
    Rule(
        "allreduce_share",
        "All-reduce share above its limit",
        "page",
        "run",
        "Workers spend more of each step in the gradient all-reduce than the run's limit allows.",
        {"limit_ratio": 0.25, "resolve_ratio": 0.22, "steps_to_fire": 2, "steps_to_resolve": 5},
        (Query(SHARE, "It is {{ $value | humanizePercentage }} of the step.", for_s=30),),
        "It uses the mean of a minute instead of two consecutive steps. It names neither cause "
        "nor node.",
        merit="share",
        is_symptom=True,
        slows_steps=True,
        waits=True,
        uneven_quiet_s=10.0,
        needs="steps with a timed gradient exchange, or a trace of the runtime",
    ),
    Rule(
        "step_slow",
        "Steps take longer",
        "page",
        "run",
        "Steps take longer than before, or longer than those of comparable workers.",
        {"least_ratio": 0.04, "unknown_ratio": 0.06, "half_ratio": 0.5},
        (Query(SLOW, "A step takes {{ $value | humanizeDuration }}.", 300, severity="warn"),),
        "It compares minutes with the median of hours, so it fires after five minutes. It does "
        "not name the worker, and cannot recognise intended changes: fewer nodes with the same "
        "batch look like a slowdown until they are the usual state.",
        merit="slowdown",
        own_limit=("least_ratio", "step_s", "baseline_step_s"),
        is_symptom=True,
        slows_steps=True,
        waits=True,
        uneven_quiet_s=90.0,
        needs="steps; without them, executions of nodes",
    ),
    Rule(
        "input_stall",
        "Input stalls training",
        "page",
        "run",
        "Steps wait for training data, on one node or on all nodes.",
        falls_short="No series has the time that each worker waits for its data.",
        merit="slowdown",
        slows_steps=True,
        waits=True,
        needs="steps with their input time, or a trace of the runtime and host utilization",
    ),
    Rule(
        "checkpoint_slow",
        "Checkpoints are slow",
        "warn",
        "run",
        "Writing a checkpoint took much longer than usual, and the whole run waited.",
        # Shared storage is often twice as slow while others write to it.
        {"slower_by_ratio": 3.0, "least_s": 3.0},
        falls_short="No series has the actual or the expected duration of checkpoints.",
        merit="phase",
        slows_steps=True,
        needs="steps with their checkpoint time, heartbeats, or host utilization of nodes",
    ),
)

# NaN is the only value that is not equal to itself. Web servers may export the same series.
NAN_LOSS = """
max by (run) (trnwatch_run_loss != trnwatch_run_loss or abs(trnwatch_run_loss) == Inf)
and on (run) trnwatch_run_info{phase="training"}
"""

LOSSES = (
    Rule(
        "loss_not_finite",
        "Loss is not finite",
        "page",
        "run",
        "The job reports a loss of NaN or infinity: what it trains from then on is of no use.",
        {"steps_to_fire": 2, "earlier_s": 86_400.0},
        (Query(NAN_LOSS, "It is {{ $value }}.", for_s=30),),
        "It sees the newest loss at each scrape instead of <steps_to_fire> steps in a row. It "
        "names neither the step nor the last checkpoint.",
        explains_itself=True,
        charts_loss=True,
        needs="steps with their loss",
    ),
    Rule(
        "loss_spike",
        "Loss rose suddenly",
        "warn",
        "run",
        "The loss is far above that of the steps before, by the scatter of the run itself.",
        falls_short="No series has the loss of each step, which shows how much it scatters.",
        explains_itself=True,
        charts_loss=True,
        needs="steps with their loss",
    ),
)


__all__ = ["RULES", "Query", "Rule", "Severity", "Subject", "names_of"]

RULES: Mapping[str, Rule] = {
    rule.name: rule for rule in (*STEPS, *LOSSES, *PARTS, *STANDSTILL, *NODES, *STARTS, *MONEY)
}
# What the alerts of each rule can be.
SEVERITIES = {name: rule.severities for name, rule in RULES.items()}


def names_of(which: Callable[[Rule], bool]) -> frozenset[str]:
    """Name the rules with a trait; stored alerts may name rules of another release."""
    return frozenset(name for name, rule in RULES.items() if which(rule))
