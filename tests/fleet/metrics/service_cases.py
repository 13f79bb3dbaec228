"""Rule tests for alerts about trnwatch itself."""

from collections.abc import Mapping

from fleet.metrics.rules import SERVICE_ALERTS, STOPPED_S
from fleet.runs.node_columns import LATE_AFTER_S
from tests.fleet.metrics.rule_cases import ABSENT, Course, RuleCase, always, nodes, rising

UP = 'up{job="trnwatch", instance="a"}'
JOB = {"job": "trnwatch"}
REPORTS, WATCHED = "trnwatch_ingest_reports_total", "trnwatch_watched_timestamp_seconds"
LATE = "trnwatch_program_late_seconds"
# Watched until the tenth minute, and again from the fifteenth.
PAUSE = "0+15x39 585+0x19 900+15x40"
Minutes = tuple[float, ...]


def of(
    alert: str,
    reported: str,
    series: Mapping[str, Course | str],
    quiet: Minutes,
    fires: Minutes,
    **labels: str,
) -> RuleCase:
    """Return a rule case with its alert's severity."""
    return RuleCase(alert, reported, series, quiet, fires, labels, SERVICE_ALERTS[alert].severity)


def level(alert: str, series: str, limit: float, more: float, **labels: str) -> RuleCase:
    """Return the story of a gauge: at its limit, above it, and well again."""
    course = ((limit, 10), (limit + more, 20), (limit, 5))
    return of(alert, series, {series: course}, (9, 34), (26, 29), **labels)


def counter(alert: str, *series: str) -> RuleCase:
    """Return the case of counters that should not change, of which the first one rises."""
    still = {f"trnwatch_{name}_total": always(3) for name in series[1:]}
    rises = rising((0, 10), (1 / 60, 20), (0, 20))
    return of(alert, series[0], still | {f"trnwatch_{series[0]}_total": rises}, (9, 45), (25, 29))


CASES = [
    of("trnwatch_absent", UP, {UP: ((1, 5), (ABSENT, 10), (1, 5))}, (4, 9, 17), (12, 14), **JOB),
    of("trnwatch_scrape_down", UP, {UP: ((1, 5), (0, 5), (1, 5))}, (4, 6, 14), (8, 9), **JOB),
    of(
        "trnwatch_not_watching", WATCHED, {WATCHED: PAUSE}, (9, 9.5 + STOPPED_S / 60, 18), (13, 14)
    ),
    of(
        "trnwatch_nothing_to_watch",
        UP,
        {UP: always(1, 30), 'trnwatch_node_up{node="n0"}': ((1, 5), (ABSENT, 10), (1, 5))},
        (4, 8, 17),
        (12, 14),
    ),
    of(
        "trnwatch_ticks_stale",
        "ticks",
        {"trnwatch_ticks_total": rising((1, 10), (0, 10), (1, 10)), **nodes("n0")},
        (9, 14, 25),
        (17, 19),
    ),
    of(
        "trnwatch_reports_stale",
        REPORTS,
        {REPORTS: rising((1, 10), (0, 10), (1, 10))},
        (9, 14, 25),
        (17, 19),
    ),
    level("trnwatch_program_late", f'{LATE}{{program="beat@a"}}', 0, 1, program="beat@a"),
    level("trnwatch_tick_late", "trnwatch_tick_lateness_seconds", LATE_AFTER_S, 0.1),
    level("trnwatch_queue_long", 'trnwatch_queue_tasks{queue="celery"}', 100, 1, queue="celery"),
    level(
        "trnwatch_dead_letters", 'trnwatch_notifications_dead{receiver="a"}', 0, 1, receiver="a"
    ),
    level("trnwatch_sender_gone", "trnwatch_notifications_sender_age_seconds", 60, 1),
    level(
        "trnwatch_untaken", 'trnwatch_alerts_unacknowledged{rule="hang", severity="page"}', 0, 1
    ),
    counter("trnwatch_rules_fail", "rules_failed"),
    counter("trnwatch_refuses_data", "refused_blocks", "refused_steps", "refused_for_room"),
    of(
        "trnwatch_refuses_deliveries",
        "ingest_errors",
        {
            "trnwatch_ingest_errors_total": rising((0.5, 15), (0.6, 20), (0, 15)),
            REPORTS: rising((10, 70)),
        },
        (14, 49),
        (32, 34),
    ),
    counter("trnwatch_clocks_wrong", "ingest_skewed"),
    level("trnwatch_scrape_slow", 'scrape_duration_seconds{job="trnwatch"}', 5, 0.1, **JOB),
]
