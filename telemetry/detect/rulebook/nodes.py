"""Rules about whole nodes, and about hearing of them at all."""

from telemetry.detect.rulebook.rule import Query, Rule

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
# Where nobody is heard of, monitoring_blind speaks for all.
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
        "It takes errors for the memory's own too, where ecc_uncorrected explains them.",
    ),
    Rule(
        "node_idle",
        "Node idles",
        "warn",
        "node",
        "A node is part of a run that trains, and does nothing.",
        {"idle_ratio": 0.05, "idle_s": 600.0},
        (Query(IDLE, "No core is above {{ $value | humanizePercentage }}.", for_s="idle_s"),),
        "A node that was left out of the steps on purpose counts as idle.",
    ),
    Rule(
        "node_silent",
        "Node silent",
        "page",
        "node",
        "A node that used to report has not been heard of; training on it may or may not go on.",
        {"quiet_s": 15.0, "enough_nodes": 2},
        (
            Query(SILENT, "It has been silent for more than <quiet_s> s."),
            Query(SILENT_SPARE, "Silent for more than <quiet_s> s.", severity="warn"),
        ),
        "Whether the node crashed, or only its telemetry is gone, it does not see.",
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
        "It ends <hold_s> s after the last error left the window of <window_s> s, however far "
        "apart errors come.",
    ),
    Rule(
        "monitoring_blind",
        "Monitoring is blind",
        "page",
        "fleet",
        "No node at all is heard of: what is broken is more likely the monitoring than the fleet.",
        {"enough_nodes": 2},
        (Query(BLIND, "Not one of the nodes reports."),),
        "That trnwatch itself is gone shows in `trnwatch_scrape_down` and `trnwatch_absent`.",
    ),
)
