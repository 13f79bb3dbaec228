"""The topics that pages follow live, and how one is rendered as server-sent events."""

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from django.template.loader import get_template

from fleet.pages import (
    alerts,
    costs,
    devices,
    drills,
    handover,
    nodes,
    notifications,
    overview,
    runs,
    silences,
)

# Older points are not sent: a chart with a gap reloads.
LATEST_S = 30.0
# How often figures of cost and scores are rendered: they are slow, or change slowly.
FIGURES_S = 5.0

Events = dict[str, bytes]
Context = Callable[..., Mapping[str, Any]]


class UnknownTopicError(ValueError):
    """An unknown topic or filter; the message lists the known ones."""


@dataclass(frozen=True, slots=True)
class Topic:
    """The live parts of one kind of page.

    ``context`` is called with the name after the colon if the topic is ``named``, and with the
    given ``filters`` as keywords. Each of ``partials`` of ``template`` becomes an event of that
    name. ``points(name, since_s=…)`` returns what charts append, by chart id:
    ``{"t": […], "values": [[…], …]}``; ``heat(context)`` returns the data of the heat map.
    ``every_s`` limits how often a slow partial is rendered. ``role`` is the lowest role that may
    follow the topic.
    """

    context: Context
    template: str
    partials: tuple[str, ...]
    role: str = "viewer"
    every_s: Mapping[str, float] = field(default_factory=dict)
    named: bool = False
    filters: tuple[str, ...] = ()
    points: Callable[..., Mapping[str, Any]] | None = None
    heat: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None


@dataclass(slots=True)
class LiveTopic:
    """A requested topic: ``node:limping``, or ``nodes`` with filters."""

    key: str
    topic: Topic
    args: tuple[str, ...] = ()
    filters: Mapping[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _sent_s: dict[str, float] = field(default_factory=dict)
    _started_s: float = field(default_factory=time.time)
    _due_s: dict[str, float] = field(default_factory=dict)

    def render(self) -> Events:
        """Render the live parts that are due; runs in the hub's thread."""
        now_s = self.clock()
        due = [name for name in self.topic.partials if now_s >= self._due_s.get(name, now_s)]
        if self.topic.partials and not due and not self.topic.heat:
            return self._points()
        context = dict(self.topic.context(*self.args, **self.filters)) | {"live": True}
        events = {name: self._partial(name, context) for name in due}
        self._due_s |= {name: now_s + self.topic.every_s.get(name, 0.0) for name in due}
        if self.topic.heat:
            events["heat"] = event("heat", as_json(self.topic.heat(context)))
        return events | self._points()

    def _partial(self, name: str, context: dict[str, Any]) -> bytes:
        html = get_template(f"{self.topic.template}#{name}").render(context)
        return event(name, "\n".join(filter(None, map(str.strip, html.splitlines()))))

    def _points(self) -> Events:
        """Render the points since the last ones of each chart."""
        if self.topic.points is None:
            return {}
        since_s = max(min(self._sent_s.values(), default=0.0), time.time() - LATEST_S)
        charts = self.topic.points(*self.args, since_s=since_s)
        news = {name: self._new_points(name, chart) for name, chart in charts.items()}
        news = {name: chart for name, chart in news.items() if chart["t"]}
        self._sent_s |= {name: chart["t"][-1] for name, chart in news.items()}
        return {"points": event("points", as_json(news))} if news else {}

    def _new_points(self, name: str, chart: Mapping[str, Any]) -> dict[str, Any]:
        first = bisect_right(chart["t"], self._sent_s.get(name, self._started_s))
        values = [series[first:] for series in chart["values"]]
        return {**chart, "t": chart["t"][first:], "values": values}


def live_topic(topics: Mapping[str, Topic], asked: str, filters: Mapping[str, str]) -> LiveTopic:
    """Parse a topic: ``overview``, ``node:limping``, ``nodes`` with filters.

    Raises UnknownTopicError if the topic or a filter is unknown, or the name is missing.
    """
    kind, _, name = asked.partition(":")
    topic = topics.get(kind)
    if topic is None or topic.named != bool(name):
        known = ", ".join(f"{kind}:<name>" if t.named else kind for kind, t in topics.items())
        raise UnknownTopicError(f"topic: {asked[:80]!r} is not one of {known}")
    if unknown := filters.keys() - set(topic.filters):
        raise UnknownTopicError(f"{min(unknown)}: is not a filter of the topic {kind}")
    key = "&".join([asked, *(f"{k}={v}" for k, v in sorted(filters.items()))])
    return LiveTopic(key, topic, (name,) if topic.named else (), dict(filters))


def as_json(value: object) -> str:
    """Encode as one line of JSON; NaN becomes null."""
    return msgspec.json.encode(value).decode()


def event(name: str, text: str) -> bytes:
    lines = text.splitlines() or [""]
    return "".join([f"event: {name}\n", *(f"data: {line}\n" for line in lines), "\n"]).encode()


TOPICS: Mapping[str, Topic] = {
    # Pages with a live header only.
    "head": Topic(context=dict, template="", partials=()),
    "overview": Topic(
        overview.overview_context,
        "pages/overview.html",
        overview.PARTIALS,
        filters=("signal",),
        heat=overview.overview_heat,
        points=overview.overview_points,
    ),
    "nodes": Topic(
        nodes.nodes_context,
        "nodes/node_list.html",
        nodes.LIST_PARTIALS,
        filters=(*nodes.NodeFilter.names(), "page"),
    ),
    "node": Topic(
        nodes.node_context,
        "nodes/node_detail.html",
        nodes.PARTIALS,
        every_s={"standout": FIGURES_S},
        named=True,
        points=nodes.node_points,
    ),
    "device": Topic(
        devices.device_context, "nodes/device_detail.html", devices.PARTIALS, named=True
    ),
    "runs": Topic(
        runs.runs_context,
        "runs/run_list.html",
        runs.LIST_PARTIALS,
        filters=(*runs.RunFilter.names(), "page"),
    ),
    "run": Topic(
        runs.run_context,
        "runs/run_detail.html",
        runs.PARTIALS,
        every_s={"money": FIGURES_S, "heat-map": FIGURES_S},
        named=True,
        filters=("signal",),
        points=runs.run_points,
    ),
    "run-money": Topic(
        costs.money_context,
        "runs/run_money.html",
        costs.MONEY_PARTIALS,
        every_s={"money": FIGURES_S},
        named=True,
    ),
    "alerts": Topic(
        alerts.alerts_context,
        "alerts/alert_list.html",
        alerts.LIST_PARTIALS,
        filters=(*alerts.AlertFilter.names(), "page"),
    ),
    "compiles": Topic(
        runs.compiles_context,
        "runs/compile_list.html",
        runs.COMPILE_PARTIALS,
        every_s=dict.fromkeys(runs.COMPILE_PARTIALS, FIGURES_S),
        filters=(*runs.CompileFilter.names(), "page"),
    ),
    "budgets": Topic(
        costs.budgets_context,
        "costs/budget_list.html",
        costs.PARTIALS,
        role="lead",
        every_s={"budgets": FIGURES_S},
        filters=("sort",),
    ),
    "drills": Topic(
        drills.drills_context,
        "simulation/drill_list.html",
        drills.LIST_PARTIALS,
        every_s={"card": FIGURES_S},
        filters=(*drills.DrillFilter.names(), "page"),
    ),
    "drill": Topic(
        drills.drill_context, "simulation/drill_detail.html", drills.PARTIALS, named=True
    ),
    "alert": Topic(alerts.alert_context, "alerts/alert_detail.html", alerts.PARTIALS, named=True),
    "silences": Topic(
        silences.silences_context,
        "alerts/silence_list.html",
        silences.LIST_PARTIALS,
        filters=("sort",),
    ),
    "silence": Topic(
        silences.silence_context, "alerts/silence_detail.html", silences.PARTIALS, named=True
    ),
    "hand-over": Topic(
        handover.shift_context, "alerts/handover.html", handover.LIVE_PARTIALS, filters=("hours",)
    ),
    "notifications": Topic(
        notifications.notifications_context,
        "notifications/notification_list.html",
        notifications.NOTIFICATIONS_PARTIALS,
    ),
    "deliveries": Topic(
        notifications.deliveries_context,
        "notifications/delivery_list.html",
        notifications.PARTIALS,
        filters=(*notifications.DeliveryFilter.names(), "page"),
    ),
}
