"""Rules that are judged by the steps of a run."""

from telemetry.detect.rulebook.rule import Query, Rule

# Figures are means of the run's last minute; several web servers may tell the same.
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
# What is usual is the median of six hours until ten minutes ago.
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
        "It is judged by the mean of a minute instead of two steps in a row, and names neither a "
        "cause nor a machine.",
    ),
    Rule(
        "step_slow",
        "Steps take longer",
        "page",
        "run",
        "Steps take longer than they used to, or than the workers' own peers explain.",
        {"least_ratio": 0.04, "unknown_ratio": 0.06, "half_ratio": 0.5},
        (Query(SLOW, "A step takes {{ $value | humanizeDuration }}.", 300, severity="warn"),),
        "It compares minutes with the median of hours, so it needs five minutes to be sure; whose "
        "work takes the time, and what somebody changed on purpose, it does not see: fewer nodes "
        "with the same batch look the same, until they are what is usual.",
    ),
    Rule(
        "input_stall",
        "Input stalls training",
        "page",
        "run",
        "Steps wait for their training data, on one node or on all of them.",
        {"least_ratio": 0.04},
        falls_short="No series says how long each worker waits for its data.",
    ),
    Rule(
        "checkpoint_slow",
        "Checkpoints are slow",
        "warn",
        "run",
        "Writing a checkpoint took much longer than it should, and the whole run stood still.",
        {"slower_by_ratio": 1.5, "slower_than_due_ratio": 1.6, "least_s": 3.0},
        falls_short="No series says how long a checkpoint takes, nor how long it should.",
    ),
)
