"""The dashboards of dashboards.toml as JSON that Grafana 10 and newer imports."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from fleet.metrics.rules import EXAMPLE_URL, STOPPED_S
from fleet.runs.node_columns import LATE_AFTER_S
from telemetry.detect.rules import RULES

FILE = Path(__file__).with_name("dashboards.toml")
# Limits that the file may refer to: of each rule, and of the alerts on the service itself.
LIMITS = {name: rule.limits for name, rule in RULES.items()} | {
    "service": {"late_s": LATE_AFTER_S, "stopped_s": STOPPED_S}
}
Json = dict[str, Any]
Kind = Literal["timeseries", "stat", "table", "bargauge"]
SCHEMA_VERSION = 38
COLUMNS = 24
# Columns of a table that carry no information.
NO_NEWS = dict.fromkeys(("Time", "__name__", "instance", "job"), True)
HIDE_COLUMNS = [{"id": "organize", "options": {"excludeByName": NO_NEWS}}]
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# The palette of Okabe and Ito, which colour-blind people can distinguish.
NORMAL, CRITICAL, WARNING = "#0072B2", "#D55E00", "#E69F00"


class Query(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One query of a panel and its legend; a ``rare`` query usually returns nothing."""

    expr: str
    legend: str = "__auto"
    rare: bool = False


class Panel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A panel: ``limit`` is drawn as a line, ``link`` is the URL of a series in trnwatch."""

    title: str
    queries: Sequence[Query]
    unit: str = "short"
    about: str = ""
    kind: Kind = "timeseries"
    width: int = 12
    height: int = 8
    limit: int | float | str | None = None
    link: str = ""
    most: int | float | None = None
    stacks: bool = False


class PanelRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    panels: Sequence[Panel]


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A variable: the values of a label; ``metric`` may use earlier variables."""

    name: str
    title: str
    metric: str

    @property
    def query(self) -> str:
        return f"label_values({self.metric}, {self.name})"


class Dashboard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dashboard; ``page`` is the page of trnwatch with the same content."""

    uid: str
    title: str
    about: str
    page: str
    rows: Sequence[PanelRow]
    choices: Sequence[Choice] = ()

    @property
    def queries(self) -> list[Query]:
        return [query for row in self.rows for panel in row.panels for query in panel.queries]

    def as_json(self, url: str) -> Json:
        """Return Grafana's JSON; ``url`` is the default of the variable for trnwatch's URL."""
        link = {
            "type": "link",
            "title": "trnwatch",
            "tooltip": "The same in trnwatch, with causes and culprits",
            "icon": "external link",
            "tags": [],
            "url": "${trnwatch}" + self.page,
            "targetBlank": True,
        }
        others = {
            "type": "dashboards",
            "title": "trnwatch dashboards",
            "tags": ["trnwatch"],
            "asDropdown": True,
            "targetBlank": False,
            "includeVars": True,
            "keepTime": True,
        }
        variables = [
            {
                "type": "query",
                "name": choice.name,
                "label": choice.title,
                "datasource": SOURCE,
                "query": {"query": choice.query, "refId": "values"},
                "definition": choice.query,
                "current": {},
                "multi": False,
                "includeAll": False,
                "refresh": 2,
                "sort": 1,
            }
            for choice in self.choices
        ]
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.about,
            "tags": ["trnwatch"],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": True,
            "graphTooltip": 1,
            "timezone": "",
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "links": [link, others],
            "templating": {"list": [*_given(url), *variables]},
            "annotations": {"list": []},
            "panels": list(_panels(self.rows)),
        }


@cache
def dashboards() -> Mapping[str, Dashboard]:
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))
    return msgspec.convert(tables, dict[str, Dashboard])


def dashboard_files(url: str = EXAMPLE_URL) -> dict[str, str]:
    """Return the dashboards as JSON by file name."""
    return {
        f"trnwatch-{name}.json": json.dumps(board.as_json(url), indent=2) + "\n"
        for name, board in dashboards().items()
    }


def _given(url: str) -> list[Json]:
    """Return the variables of every dashboard: the data source, and trnwatch's URL."""
    where = {"text": url, "value": url}
    return [
        {
            "type": "datasource",
            "name": "datasource",
            "label": "Prometheus",
            "query": "prometheus",
            "current": {},
            "refresh": 1,
        },
        {
            "type": "textbox",
            "name": "trnwatch",
            "label": "trnwatch",
            "query": url,
            "current": where,
            "options": [where | {"selected": True}],
        },
    ]


def _panels(rows: Sequence[PanelRow]) -> Iterator[Json]:
    """Place panels from left to right, then down."""
    y, number = 0, 1
    for row in rows:
        at = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        heading = {"type": "row", "title": row.title, "gridPos": at, "collapsed": False}
        yield heading | {"id": number, "panels": []}
        x, y, height, number = 0, y + 1, 0, number + 1
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            is_now = panel.kind != "timeseries"
            targets = [
                {
                    "refId": chr(ord("A") + i),
                    "datasource": SOURCE,
                    "expr": query.expr,
                    "legendFormat": query.legend,
                    "instant": is_now,
                    "range": not is_now,
                    "format": "table" if panel.kind == "table" else "time_series",
                }
                for i, query in enumerate(panel.queries)
            ]
            yield {
                "id": number,
                "type": panel.kind,
                "title": panel.title,
                "description": panel.about.format_map(LIMITS),
                "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
                "datasource": SOURCE,
                "targets": targets,
                "fieldConfig": {"defaults": _field(panel), "overrides": []},
                "options": _options(panel.kind),
            } | ({"transformations": HIDE_COLUMNS} if panel.kind == "table" else {})
            x, height, number = x + panel.width, max(height, panel.height), number + 1
        y += height


def _field(panel: Panel) -> Json:
    steps: list[Json] = [{"color": NORMAL, "value": None}]
    limit = panel.limit
    if isinstance(limit, str):
        rule, _, name = limit.partition(".")
        limit = LIMITS[rule][name]
    if limit is not None:
        steps.append({"color": CRITICAL, "value": limit})
    custom: Json = {}
    if panel.kind == "timeseries":
        custom = {
            "lineWidth": 1,
            "fillOpacity": 20 if panel.stacks else 0,
            "showPoints": "never",
            # Missing data is not zero.
            "spanNulls": False,
            "stacking": {"mode": "normal" if panel.stacks else "none"},
            "thresholdsStyle": {"mode": "off" if limit is None else "dashed"},
        }
    links = [{"title": "trnwatch", "url": "${trnwatch}" + panel.link, "targetBlank": True}]
    return {
        "unit": panel.unit,
        "custom": custom,
        "thresholds": {"mode": "absolute", "steps": steps},
        "links": links if panel.link else [],
        "color": {"mode": "palette-classic" if panel.kind == "timeseries" else "thresholds"},
    } | ({"min": 0, "max": panel.most} if panel.most is not None else {})


def _options(kind: Kind) -> Json:
    newest = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if kind == "timeseries":
        legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
        return {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    if kind == "table":
        return {"showHeader": True}
    look = {"graphMode": "none"} if kind == "stat" else {"orientation": "horizontal"}
    return {"reduceOptions": newest, "textMode": "auto", **look}
