"""Rules about runs that end no step."""

from telemetry.detect.rulebook.rule import Query, Rule

# What hosts and cores do while a run stands still; above the first a core computes or moves
# bytes, above the others a host compiles, or reads and writes.
ACTIVITY = {"working_ratio": 0.15, "compiling_ratio": 0.45, "loading_ratio": 0.2}
# The store forgets a run's steps after a while; Prometheus remembers when the last one ended.
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
        "No step ends any more, though the run says that it trains.",
        {
            "late_steps": 1.5,
            "late_s": 10.0,
            "first_s": 90.0,
            "patience_steps": 3.0,
            "patience_s": 30.0,
            **ACTIVITY,
        },
        (Query(HANG, "The last step ended {{ $value | humanizeDuration }} ago.", 30),),
        "It waits for <patience_steps> step times instead of <late_steps>, does not name the node "
        "that did not join, and takes a host whose threads spin above <loading_ratio> of its "
        "vCPUs for one that works.",
    ),
    Rule(
        "recompile",
        "Unexpected recompilation",
        "warn",
        "run",
        "The run stands still to compile its graphs again, and nobody announced it.",
        {"certain_s": 5, "most_ratio": 0.5, "page_after_s": 600.0, **ACTIVITY},
        (
            Query(RECOMPILE, "{{ $value | humanizePercentage }} of its hosts compile.", 30),
            Query(
                RECOMPILE,
                "{{ $value | humanizePercentage }} of its hosts have compiled for long.",
                for_s="page_after_s",
                severity="page",
            ),
        ),
        "Compilations shorter than half a minute, and what they cost, it does not see.",
    ),
)
