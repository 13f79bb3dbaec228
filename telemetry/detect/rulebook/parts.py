"""Rules about parts of nodes, judged by what the same parts beside them do."""

from telemetry.detect.rulebook.rule import Query, Rule

# By how much a part must stand away from its role alone, which so many nodes make.
APART = {"blatant_ratio": 0.10, "enough_nodes": 3}
# Each part over the usual one of its node, over two minutes, with the run that its node trains.
# Both are means of the same scrapes: a step seen by one and not by the other is no difference.
CORE = """
avg_over_time(trnwatch_core_utilization_ratio[2m])
  / on (node) group_left ()
    (quantile by (node) (0.5, avg_over_time(trnwatch_core_utilization_ratio[2m])) > 0)
  * on (node) group_left (run) node:trnwatch_run:info{run!=""}
"""
MEMORY = """
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
  {_in_lines(MEMORY, 2)}
)
/ on (run, device) group_left () quantile by (run, device) (0.5,
  {_in_lines(MEMORY, 2)}
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
# What the value is depends on the kind.
KINDS = (
    "Device {{ $labels.device }} "
    '{{ if eq $labels.kind "loss" }}sends {{ $value | humanizePercentage }} of its packets again'
    '{{ else if eq $labels.kind "down" }}sends only {{ $value | humanize }} bytes per second'
    "{{ else }}answers after {{ $value | humanize }} times the usual latency{{ end }}."
)

PARTS = (
    Rule(
        "core_slow",
        "Core or accelerator computes slowly",
        "page",
        "node",
        "A core, or all cores of an accelerator, stay busy while the rest of the node waits.",
        {
            "least_ratio": 0.05,
            "deviations": 5.0,
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
        "It sees a core that is busier by a ratio of <blatant_ratio> than the same core of other "
        "nodes, in runs of <enough_nodes> nodes and more; less, as a change against the core's "
        "own past, it does not, and it does not tell a core from a throttled accelerator.",
    ),
    Rule(
        "hbm_slow",
        "HBM has lost bandwidth",
        "page",
        "node",
        "An accelerator moves fewer bytes from and to its memory than its peers do.",
        {"least_ratio": 0.06, "awake_bytes_per_s": 1e8, **APART},
        (
            Query(
                MEMORIES,
                "Device {{ $labels.device }} moves {{ $value | humanizePercentage }} of "
                "what is usual.",
                for_s=60,
            ),
        ),
        "As for core_slow. Real nodes report one estimate for all their devices: nothing fires.",
    ),
    Rule(
        "efa_degraded",
        "EFA device degraded",
        "page",
        "node",
        "An EFA device answers late, loses packets, or carries nothing any more.",
        {
            "loss_ratio": 2e-4,
            "least_again": 5,
            "dead_ratio": 0.05,
            "at_work_bytes_per_s": 1e3,
            "blatant_latency_ratio": 1.3,
        },
        (Query(EFA, KINDS, for_s=60),),
        "Its label `kind` says which: loss, down or latency. It sees latency of "
        "<blatant_latency_ratio> times the run's usual; less, a change against the device's own "
        "past, and a fabric that is worse as a whole it does not.",
    ),
)
