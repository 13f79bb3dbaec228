"""What can be watched live: how a topic of the address becomes rendered server-sent events."""

import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from django.template.loader import get_template

# Points older than this are no news; a chart that has a gap asks for the whole again.
LATEST_S = 30.0

Events = dict[str, bytes]
Context = Callable[..., Mapping[str, Any]]


class UnknownTopicError(ValueError):
    """A topic or filter that no page has; the message says what there is."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What one kind of page keeps live.

    ``context`` is called with the name after the colon, where the topic is ``named``, and with
    the ``filters`` that the address gives, as keywords. Every partial of ``template`` named in
    ``partials`` becomes an event of that name. ``points(name, since_s=…)`` returns what charts
    append, by chart id: ``{"t": […], "values": [[…], …]}``; ``heat(context)`` what the heat map
    shows. A partial named in ``every_s`` changes slowly or takes long: it is drawn anew only
    after so many seconds. ``role`` is the least that whoever follows the topic must have.
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
    """One topic as somebody asked for it: ``node:limping``, or ``nodes`` with its filters."""

    key: str
    topic: Topic
    args: tuple[str, ...] = ()
    filters: Mapping[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    _drawn_s: dict[str, float] = field(default_factory=dict)
    _began_s: float = field(default_factory=time.time)
    _due_s: dict[str, float] = field(default_factory=dict)

    def render(self) -> Events:
        """Render everything that lives on the page and is due; runs in the hub's thread."""
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
        """Render what charts append since last time; each chart has its own last time."""
        if self.topic.points is None:
            return {}
        since_s = max(min(self._drawn_s.values(), default=0.0), time.time() - LATEST_S)
        charts = self.topic.points(*self.args, since_s=since_s)
        news = {name: self._unseen(name, chart) for name, chart in charts.items()}
        news = {name: chart for name, chart in news.items() if chart["t"]}
        self._drawn_s |= {name: chart["t"][-1] for name, chart in news.items()}
        return {"points": event("points", as_json(news))} if news else {}

    def _unseen(self, name: str, chart: Mapping[str, Any]) -> dict[str, Any]:
        first = bisect_right(chart["t"], self._drawn_s.get(name, self._began_s))
        values = [series[first:] for series in chart["values"]]
        return {**chart, "t": chart["t"][first:], "values": values}


def live_topic(topics: Mapping[str, Topic], asked: str, filters: Mapping[str, str]) -> LiveTopic:
    """Read a topic of the address: ``overview``, ``node:limping``, ``nodes`` with filters.

    Raises
    ------
    UnknownTopicError
        Where there is no such topic, it lacks its name, or a filter is none of its own.
    """
    kind, _, name = asked.partition(":")
    topic = topics.get(kind)
    if topic is None or topic.named != bool(name):
        known = ", ".join(f"{kind}:<name>" if t.named else kind for kind, t in topics.items())
        raise UnknownTopicError(f"topic: {asked[:80]!r} is none of {known}")
    if strangers := filters.keys() - set(topic.filters):
        raise UnknownTopicError(f"{min(strangers)}: is no filter of the topic {kind}")
    key = "&".join([asked, *(f"{k}={v}" for k, v in sorted(filters.items()))])
    return LiveTopic(key, topic, (name,) if topic.named else (), dict(filters))


def as_json(value: object) -> str:
    """Write JSON on one line; a gap (NaN) is null."""
    return msgspec.json.encode(value).decode()


def event(name: str, text: str) -> bytes:
    """Write one server-sent event."""
    lines = text.splitlines() or [""]
    return "".join([f"event: {name}\n", *(f"data: {line}\n" for line in lines), "\n"]).encode()
