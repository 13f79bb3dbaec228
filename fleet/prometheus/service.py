"""Alerts about trnwatch itself: who watches the watcher."""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.summaries import LATE_AFTER_S
from telemetry.detect.rules import Severity

RUNBOOK = "service"
NOTIFICATIONS = "notifications"
# How long watching may pause before it counts as stopped.
STOPPED_S = 60


@dataclass(frozen=True, slots=True)
class Watch:
    """One alert about the service: what is asked, for how long, and in words what it means."""

    name: str
    title: str
    severity: Severity
    expr: str
    for_s: float
    says: str
    runbook: str = RUNBOOK


_ALL = (
    Watch(
        "trnwatch_absent",
        "Prometheus does not scrape trnwatch",
        "page",
        'absent(up{job="trnwatch"})',
        300,
        "No target of the job trnwatch is known: its scrape configuration is gone.",
    ),
    Watch(
        "trnwatch_scrape_down",
        "trnwatch does not answer",
        "page",
        'max by (job) (up{job="trnwatch"}) == 0',
        120,
        "Every scrape fails: no page, no watching, and alerts of nodes go stale.",
    ),
    Watch(
        "trnwatch_not_watching",
        "Nobody looks at the fleet",
        "page",
        f"time() - max(trnwatch_watched_timestamp_seconds) > {STOPPED_S}",
        30,
        "The rules were last applied {{ $value | humanizeDuration }} ago: workers, beat or the "
        "broker stand still.",
    ),
    Watch(
        "trnwatch_nothing_to_watch",
        "trnwatch tells of no node",
        "warn",
        'absent(trnwatch_node_up) and on () up{job="trnwatch"} == 1',
        300,
        "It answers, and knows no node that ought to report.",
    ),
    Watch(
        "trnwatch_ticks_stale",
        "No ticks arrive",
        "page",
        "max(increase(trnwatch_ticks_total[5m])) == 0\n"
        'and on () count(trnwatch_node_info{source="simulated", run!=""}) > 0',
        60,
        "Simulated nodes have stood still for five minutes.",
    ),
    Watch(
        "trnwatch_reports_stale",
        "No reports arrive",
        "page",
        "max(increase(trnwatch_ingest_reports_total[5m])) == 0\n"
        "and max(increase(trnwatch_ingest_reports_total[1h] offset 5m)) > 0",
        60,
        "Real nodes reported within the hour, and none has for five minutes.",
    ),
    Watch(
        "trnwatch_tick_late",
        "Ticks come late",
        "warn",
        f"max(trnwatch_tick_lateness_seconds) > {LATE_AFTER_S:g}",
        120,
        "The latest tick was {{ $value | humanizeDuration }} late: too few workers.",
    ),
    Watch(
        "trnwatch_queue_long",
        "Tasks wait for workers",
        "warn",
        "max by (queue) (trnwatch_queue_tasks) > 100",
        120,
        "{{ $value }} tasks wait in {{ $labels.queue }}.",
    ),
    Watch(
        "trnwatch_dead_letters",
        "Notifications were given up",
        "page",
        "max by (receiver) (trnwatch_notifications_dead) > 0",
        0,
        "{{ $value }} that {{ $labels.receiver }} did not take: somebody may not know.",
        NOTIFICATIONS,
    ),
    Watch(
        "trnwatch_sender_gone",
        "Nobody sends notifications",
        "page",
        "max(trnwatch_notifications_sender_age_seconds) > 60",
        30,
        "No sender was heard of for {{ $value | humanizeDuration }}.",
        NOTIFICATIONS,
    ),
    Watch(
        "trnwatch_untaken",
        "A page that nobody has taken",
        "page",
        'sum by (rule) (max by (rule, severity) (trnwatch_alerts_unacknowledged{severity="page"}))'
        " > 0",
        900,
        "{{ $value }} of {{ $labels.rule }}, for a quarter of an hour.",
    ),
    Watch(
        "trnwatch_refuses_data",
        "Data are refused",
        "warn",
        "sum(increase(trnwatch_refused_blocks_total[10m]))\n"
        "+ sum(increase(trnwatch_refused_steps_total[10m]))\n"
        "+ sum(increase(trnwatch_refused_for_room_total[10m])) > 0",
        300,
        "{{ $value | humanize }} within ten minutes came too late, from the future, or beyond "
        "what there is room for.",
    ),
    Watch(
        "trnwatch_refuses_deliveries",
        "Deliveries of nodes are refused",
        "warn",
        "sum(rate(trnwatch_ingest_errors_total[10m])) > 0.05 * (\n"
        "  sum(rate(trnwatch_ingest_reports_total[10m]))\n"
        "  + sum(rate(trnwatch_ingest_errors_total[10m]))\n"
        ")",
        300,
        "{{ $value | humanize }} a second: tokens that expired, or agents too old.",
    ),
    Watch(
        "trnwatch_clocks_wrong",
        "Clocks of nodes are wrong",
        "warn",
        "sum(increase(trnwatch_ingest_skewed_total[10m])) > 0",
        600,
        "{{ $value | humanize }} reports within ten minutes had to be corrected.",
    ),
    Watch(
        "trnwatch_scrape_slow",
        "Scrapes take long",
        "warn",
        'max by (job) (scrape_duration_seconds{job="trnwatch"}) > 5',
        300,
        "The latest took {{ $value | humanizeDuration }}.",
    ),
)
WATCHES: Mapping[str, Watch] = {watch.name: watch for watch in _ALL}
