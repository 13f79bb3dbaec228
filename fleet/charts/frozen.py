"""The charts of an alert as they were: stored, cut, and summarised as figures."""

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import msgspec
import numpy as np
import zstandard
from django.db import transaction
from django.db.models import Prefetch, Q

from fleet.charts.alerts import AFTER_S, alert_figure, alert_window, charts_of
from fleet.charts.figures import Chart, ChartLine, Heat
from fleet.charts.windows import Window
from fleet.formatting import figure as format_figure
from fleet.models import Alert, AlertEvent, FrozenChart, Node, Silence
from fleet.models.alert import SNAPSHOT_FIELDS
from telemetry.blocks import median_of
from telemetry.store.reading import LongTerm, Source

Drawn = dict[str, Any]
# Data that expires this soon is kept now: the task may run late.
IN_TIME_S = 180
# The newest seconds may be incomplete.
NEWEST_S = 5
FALSE_REASONS = {label: value for value, label in Alert.FalseReason.choices}


def freeze(source: Source, alert: Alert, *, now: datetime) -> None:
    """Store the current charts of an alert."""
    _keep(source, alert, alert_window(alert, now=now), now=now, kept_until=None)


def frozen_figure(alert: Alert, chart: str) -> bytes | None:
    """Return a frozen chart as JSON; None where an alert has none or is open."""
    whole = alert.frozen_charts.filter(name=chart, kept_until=None)
    packed = None if alert.is_open else whole.values_list("figure", flat=True).first()
    return None if packed is None else _unpacked(packed)


def lasting_figure(source: Source, alert: Alert, chart: str, *, now: datetime) -> bytes | None:
    """Return a chart of an open alert: the stored part, then live data; None if all is live."""
    kept = alert.frozen_charts.filter(name=chart, kept_until__isnull=False).first()
    if kept is None or kept.kept_until is None:
        return None
    window = alert_window(alert, now=now)
    rest = Window(int(kept.kept_until.timestamp()), window.end)
    drawn = msgspec.json.decode(_unpacked(kept.figure))
    if rest.end > rest.start:
        figure = alert_figure(source, alert, chart, rest, now=now)
        drawn = drawn if figure is None else joined(drawn, figure.as_json())
    return msgspec.json.encode(drawn)


def freeze_due(hot: Source, *, now: datetime) -> list[Alert]:
    """Store data that expires soon, and resolved alerts as a whole; return the latter.

    An alert longer than the hot tier is stored in parts, each before its 1 s data expires.
    """
    settled, oldest = now - timedelta(seconds=AFTER_S), now - timedelta(seconds=hot.keep_s)
    wanted = Q(resolved_at=None) | Q(resolved_at__gt=oldest)
    over = []
    charts = Prefetch("frozen_charts", FrozenChart.objects.defer("figure"))
    alerts = Alert.objects.filter(wanted).select_related("run", "node")
    for alert in alerts.prefetch_related(charts):
        kept = list(alert.frozen_charts.all())
        is_over = alert.resolved_at is not None and alert.resolved_at <= settled
        if kept and all(chart.kept_until is None for chart in kept):
            continue
        if _store_part(hot, alert, kept, is_over=is_over, now=now) and is_over:
            over.append(alert)
    return over


def _store_part(
    hot: Source, alert: Alert, kept: list[FrozenChart], *, is_over: bool, now: datetime
) -> bool:
    """Store the next part of an alert if it is over, or if its 1 s data expires soon."""
    whole, oldest = alert_window(alert, now=now), int(now.timestamp()) - hot.keep_s
    known = [int(c.kept_until.timestamp()) for c in kept if c.kept_until is not None]
    start = max(known, default=whole.start)
    end = whole.end if is_over else min(whole.end, int(now.timestamp()) - NEWEST_S)
    is_soon_lost = start < oldest + IN_TIME_S
    is_too_late = is_over and not known and start <= oldest
    if end <= start or not (is_over or is_soon_lost) or is_too_late:
        return False
    kept_until = None if is_over else datetime.fromtimestamp(end, UTC)
    _keep(hot, alert, Window(max(start, oldest), end), now=now, kept_until=kept_until)
    return True


@transaction.atomic
def _keep(
    source: Source, alert: Alert, window: Window, *, now: datetime, kept_until: datetime | None
) -> None:
    """Store the charts over a window, appended to what is stored already."""
    unfinished = FrozenChart.objects.filter(alert=alert, kept_until__isnull=False)
    before = {chart.name: chart.figure for chart in unfinished}
    for chart in charts_of(alert):
        figure = alert_figure(source, alert, chart.name, window, now=now)
        if figure is None:
            continue
        drawn = figure.as_json()
        if chart.name in before:
            drawn = joined(msgspec.json.decode(_unpacked(before[chart.name])), drawn)
        packed = zstandard.ZstdCompressor(level=9).compress(msgspec.json.encode(drawn))
        FrozenChart.objects.update_or_create(
            alert=alert, name=chart.name, defaults={"figure": packed, "kept_until": kept_until}
        )
    if kept_until is None:
        unfinished.update(kept_until=None)


def joined(older: Mapping[str, Any], newer: Mapping[str, Any]) -> Drawn:
    """Join two parts of a chart: lines by label, a gap where a part lacks the line.

    Bars have no time: the newer replace the older.
    """
    if newer.get("labels") or "series" not in newer or "series" not in older:
        return dict(newer)
    n_older = sum(t < newer["t"][0] for t in older["t"]) if newer["t"] else len(older["t"])
    after = {line["label"]: line for line in newer["series"]}
    before = {line["label"]: line for line in older["series"]}
    lines = []
    for label, line in (before | after).items():
        first = before[label]["values"][:n_older] if label in before else [None] * n_older
        last = after[label]["values"] if label in after else [None] * len(newer["t"])
        lines.append(line | {"values": [*first, *last]})
    windows = [piece["window"] for piece in (older, newer) if piece.get("window")]
    whole = [windows[0][0], windows[-1][1]] if windows else None
    t = [*older["t"][:n_older], *newer["t"]]
    return {**newer, "t": t, "series": lines, "window": whole}


def _unpacked(packed: bytes | memoryview) -> bytes:
    return zstandard.ZstdDecompressor().decompress(bytes(packed))


Kind = AlertEvent.Kind
# Unix seconds with microseconds: whole seconds would miss or add an event.
MOMENT = re.compile(r"\d{1,11}(\.\d{1,6})?", re.ASCII)
SILENCED = re.compile(r"until (\d{4}-\d\d-\d\d \d\d:\d\d) UTC: (.*)", re.DOTALL)


def frozen_link(alert: Alert, *, at: datetime) -> str:
    """Return the address of an alert's page frozen at a time: window, evidence, state."""
    window = alert_window(alert, now=at)
    query = {"from": window.start, "to": window.end, "at": written(at)}
    return f"{alert.get_absolute_url()}?{urlencode(query)}"


def written(moment: datetime) -> str:
    """Format a time for addresses, in Unix seconds."""
    return f"{moment.timestamp():.6f}".rstrip("0").rstrip(".")


def parse_moment(given: str, *, alert: Alert, now: datetime) -> datetime | None:
    """Parse a time from a URL, in Unix seconds; None where invalid or in the future.

    Times before the alert fired become the second in which it fired.
    """
    if not MOMENT.fullmatch(given):
        return None
    moment = datetime.fromtimestamp(float(given), UTC)
    return max(moment, alert.fired_at) if moment <= now else None


def as_of(alert: Alert, events: Iterable[AlertEvent], *, at: datetime) -> Alert:
    """Return a copy of an alert in its state at a time. Never save it.

    Text and evidence come from the last snapshot; who acknowledged it, and whether it was over,
    from the events.
    """
    alert_at = copy.copy(alert)
    past = [event for event in events if event.at <= at]
    snapshots = [event.snapshot for event in past if event.snapshot]
    if snapshots:
        snapshot = snapshots[-1]
        for name in SNAPSHOT_FIELDS:
            if name in snapshot:
                setattr(alert_at, name, snapshot[name])
        for name in ("worst", "latest"):
            # What was seen between two entries of the timeline.
            if (seen := getattr(alert, name)) and seen["at_s"] <= at.timestamp():
                setattr(alert_at, name, seen)
        node = snapshot.get("node")
        if node != (alert_at.node.name if alert_at.node else None):
            alert_at.node = Node.objects.filter(name=node).first() if node else None
    alert_at.resolved_at = alert_at.acknowledged_at = None
    alert_at.acknowledged_by = alert_at.assigned_to = ""
    alert_at.marked_false_at = None
    alert_at.assigned_at = alert_at.flapping_since = alert_at.quiet_since = alert_at.silence = None
    alert_at.n_firings = 1 + sum(event.kind == Kind.REFIRED for event in past)
    for event in past:
        _replay(alert_at, event)
    return alert_at


def _replay(alert_at: Alert, event: AlertEvent) -> None:
    match event.kind:
        case Kind.ACKNOWLEDGED:
            alert_at.acknowledged_at, alert_at.acknowledged_by = event.at, event.by
        case Kind.UNACKNOWLEDGED:
            alert_at.acknowledged_at, alert_at.acknowledged_by = None, ""
        case Kind.MARKED_FALSE:
            alert_at.marked_false_at, alert_at.marked_false_by = event.at, event.by
            reason, _, alert_at.false_comment = event.text.partition(": ")
            alert_at.false_reason = FALSE_REASONS[reason]
        case Kind.UNMARKED_FALSE:
            alert_at.marked_false_at = None
        case Kind.RESOLVED:
            alert_at.resolved_at = event.at
        case Kind.REFIRED:
            alert_at.resolved_at = alert_at.silence = None
        case Kind.SILENCED:
            alert_at.silence = _silence(event)
        case Kind.UNSILENCED:
            alert_at.silence = None
        case Kind.FLAPPING:
            alert_at.flapping_since = event.at
        case Kind.ASSIGNED:
            alert_at.assigned_to = event.text.removeprefix("to ").partition(":")[0]
            alert_at.assigned_at = event.at


def _silence(event: AlertEvent) -> Silence | None:
    """Return a silence as its event recorded it: its row may have changed or be gone."""
    match = SILENCED.fullmatch(event.text)
    if match is None:
        return None
    ends_at = datetime.strptime(match[1], "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
    return Silence(by=event.by, reason=match[2], starts_at=event.at, ends_at=ends_at)


def incident_figure(
    source: Source,
    alert: Alert,
    chart: str,
    window: Window,
    *,
    at: str,
    now: datetime,
    long_term: LongTerm | None = None,
) -> bytes | Chart | Heat | None:
    """Return one chart of an alert, frozen at a time if given; None if it has no such chart.

    A window within the frozen one is cut out of it, with its original resolution.
    """
    moment = parse_moment(at, alert=alert, now=now)
    alert_at = as_of(alert, alert.events.all(), at=moment) if moment else alert
    if _culprit_of(alert_at) == _culprit_of(alert):
        frozen = frozen_figure(alert, chart) or lasting_figure(source, alert, chart, now=now)
        if frozen is not None and window == alert_window(alert, now=now):
            return frozen
        if frozen is not None and (cut := _cut(frozen, window)) is not None:
            return cut
    return alert_figure(source, alert_at, chart, window, now=moment or now, long_term=long_term)


def _culprit_of(alert: Alert) -> tuple[object, ...]:
    return (alert.rule, alert.cause, alert.node_id, alert.device)


def _cut(frozen: bytes, window: Window) -> bytes | None:
    figure: dict[str, Any] = msgspec.json.decode(frozen)
    kept_window, times = figure.get("window"), figure.get("t")
    if (
        not kept_window
        or not times
        or window.start < kept_window[0]
        or window.end > kept_window[1]
    ):
        return None
    kept = [i for i, second in enumerate(times) if window.start <= second <= window.end]
    figure["t"] = [times[i] for i in kept]
    for series in figure.get("series", ()):
        series["values"] = [series["values"][i] for i in kept]
    figure["window"] = [window.start, window.end]
    return msgspec.json.encode(figure)


NEGLIGIBLE_RATIO = 1e-3


@dataclass(frozen=True, slots=True)
class FigureRow:
    """One line of a chart, summarised in two figures with their unit."""

    chart: str
    line: str
    before: str
    during: str


def figures_of(source: Source, alert: Alert, *, now: datetime) -> Sequence[FigureRow]:
    """Return the medians of the most important lines: phases, shares, culprit and peers."""
    window, rows = alert_window(alert, now=now), []
    for chart in charts_of(alert):
        figure = alert_figure(source, alert, chart.name, window, now=now)
        if isinstance(figure, Chart) and len(figure.t_s):
            end_s = (alert.resolved_at or now).timestamp()
            rows += _rows(chart.title, figure, alert.onset_at.timestamp(), end_s)
    return rows


def _rows(title: str, figure: Chart, onset_s: float, end_s: float) -> list[FigureRow]:
    t_s = np.asarray(figure.t_s, float)
    before, during = t_s < onset_s, (t_s >= onset_s) & (t_s <= end_s)
    lines = [line for line in _table_lines(figure) if np.isfinite(line.values).any()]
    medians = [
        (line, median_of(line.values[before]), median_of(line.values[during])) for line in lines
    ]
    largest = max((abs(v) for _, *pair in medians for v in pair if v is not None), default=0.0)
    return [
        FigureRow(title, line.label, format_figure(a, figure.unit), format_figure(b, figure.unit))
        for line, a, b in medians
        if max(abs(a or 0.0), abs(b or 0.0)) > NEGLIGIBLE_RATIO * largest
    ]


def _table_lines(figure: Chart) -> Sequence[ChartLine]:
    muted = [line for line in figure.lines if line.role == "muted"]
    others = [line for line in figure.lines if line.role != "muted"]
    if not muted:
        return others
    together = np.stack([line.values for line in muted])
    known = np.isfinite(together).any(axis=0)
    median = np.full(together.shape[1], np.nan)
    median[known] = np.nanmedian(together[:, known], axis=0)
    return [*others, ChartLine(f"median of {len(muted)} peers", median)]
