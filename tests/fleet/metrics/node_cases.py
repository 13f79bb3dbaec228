"""Rule tests for alerts about whole nodes and their reports."""

from telemetry.detect import RULES
from tests.fleet.metrics.rule_cases import (
    CORE,
    FOUR,
    LLAMA,
    N0,
    Course,
    RuleCase,
    always,
    nodes,
    rising,
)

UP = "trnwatch_node_up"
ERRORS = 'trnwatch_node_execution_errors_total{node="n0"}'
FAILED = 'trnwatch_node_executions_failed_total{node="n0"}'
DONE = 'trnwatch_node_executions_completed_total{node="n0"}'
LIMITS, IDLE = RULES["exec_errors"].limits, RULES["node_idle"].limits
ABSENT_S = ((1, 5), (0, 5), (1, 10))


def errors(per_s: float, severity: str) -> RuleCase:
    """It fires for errors at a rate, and resolves once there are none."""
    course = rising((per_s * 0.98, 10), (per_s * 1.02, 10), (0, 10))
    return RuleCase("exec_errors", ERRORS, {ERRORS: course}, (9, 29), (14, 19), N0, severity)


def failures() -> RuleCase:
    """It fires where a share of the executions fails."""
    failed, ratio = 0.02, LIMITS["page_ratio"]
    done = [failed / ratio * times for times in (1.1, 0.9, 2)]
    series = {FAILED: rising((failed, 40)), DONE: rising(*((per_s, 10) for per_s in done))}
    return RuleCase("exec_errors", FAILED, series, (9, 29), (14, 19), N0)


def node_idle() -> RuleCase:
    """It fires where no core has done anything for long, while the run makes steps."""
    core = f'{CORE}{{node="n0", core="0"}}'
    at_limit, below = IDLE["idle_ratio"], IDLE["idle_ratio"] * 0.9
    series: dict[str, Course | str] = {
        core: ((at_limit, 30), (below, 20), (0.5, 10)),
        'trnwatch_run_steps_total{run="llama"}': rising((0.5, 120)),
        **nodes("n0"),
    }
    return RuleCase("node_idle", CORE, series, (29, 39, 59), (42, 49), N0 | LLAMA, "warn")


def silences() -> list[RuleCase]:
    """It fires for a node among others, for one alone, for a spare; not where all are silent."""
    ups = {f'{UP}{{node="{n}"}}': always(1) for n in FOUR}
    n0, spare = f'{UP}{{node="n0"}}', f'{UP}{{node="spare"}}'
    among = {**ups, n0: ABSENT_S, **nodes(*FOUR)}
    next_to = {**ups, spare: ABSENT_S, **nodes(*FOUR), **nodes("spare", run="")}
    all_absent = {
        n0: ABSENT_S,
        f'{UP}{{node="n1"}}': ((1, 4), (0, 6), (1, 10)),
        **nodes("n0", "n1"),
    }
    return [
        RuleCase("node_silent", UP, among, (4, 14), (6, 9), N0 | LLAMA),
        RuleCase("node_silent", UP, {n0: ABSENT_S, **nodes("n0")}, (4, 14), (6, 9), N0 | LLAMA),
        RuleCase("node_silent", UP, next_to, (4, 14), (6, 9), {"node": "spare"}, "warn"),
        RuleCase("monitoring_blind", UP, all_absent, (4.5, 14), (6, 9)),
        RuleCase("node_silent", UP, all_absent, (8, 9), (), N0 | LLAMA),
    ]


def memory_errors(kind: str, memory: str) -> RuleCase:
    """It fires when a count rises from any value, and stays for a while."""
    counted = f'trnwatch_device_{kind}_ecc_uncorrected_total{{node="n0", device="3"}}'
    labels = N0 | {"device": "3", "memory": memory}
    series = {counted: ((3, 20), (5, 40))}
    return RuleCase("ecc_uncorrected", "ecc", series, (19, 45), (21, 37), labels)


def unhealthy(run: str, severity: str) -> RuleCase:
    """It fires while a device is rejected; on a spare node it can wait."""
    node = "n0" if run else "spare"
    state = f'trnwatch_device_unhealthy{{node="{node}", device="3"}}'
    labels = {"node": node, "device": "3"} | ({"run": run} if run else {})
    series = {state: ((0, 10), (1, 10), (0, 10)), **nodes(node, run=run)}
    return RuleCase("device_unhealthy", state, series, (9, 23), (12, 21), labels, severity)


CASES = [
    unhealthy("llama", "page"),
    unhealthy("", "warn"),
    errors(LIMITS["least_per_s"], "warn"),
    errors(LIMITS["page_per_s"], "page"),
    failures(),
    node_idle(),
    *silences(),
    memory_errors("mem", "hbm"),
    memory_errors("sram", "sram"),
]
