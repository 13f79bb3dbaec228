"""The chart of an alert as a PNG, for mail, chat and incidents: drawn without a browser."""

import io
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import msgspec
import numpy as np
from django.core.signing import Signer
from django.urls import reverse
from django.utils.crypto import constant_time_compare
from PIL import Image, ImageDraw, ImageFont

from fleet.charts.alerts import alert_window, charts_of
from fleet.charts.figures import Chart
from fleet.charts.frozen import incident_figure
from fleet.formatting import figure as written
from fleet.models import Alert
from telemetry.blocks import FloatArray
from telemetry.store.reading import LongTerm, Source

# Twice the width of a mail's column: sharp on dense screens.
SIZE = 1120, 440
LEFT, TOP, RIGHT, BOTTOM = 130, 92, 24, 44
TEXT, SMALL = 26, 21
BACKGROUND, INK, FAINT, GRID = "#ffffff", "#16202b", "#566372", "#dfe3e8"
# As in static/fleet/tokens.css, light.
COLOURS = {
    "compute": "#3b6fb6",
    "transfer": "#cf8400",
    "wait": "#c0504d",
    "input": "#7d8b99",
    "checkpoint": "#4f9370",
    "other": "#9a8fb5",
    "bad": "#b3261e",
    "muted": "#b9c1ca",
}
# Shade of the time of the alert.
AFFECTED = "#fbe9e7"
N_LEVELS, MOST_NAMED = 4, 6
# The highest value leaves some room above it.
FILLED = 0.92
RANK = {"muted": 0, "bad": 2}
DRAWN_KINDS = ("lines", "stack")


def alert_image(
    source: Source, alert: Alert, *, at: datetime, now: datetime, long_term: LongTerm | None = None
) -> bytes | None:
    """Draw an alert's first chart at a time as a PNG; None without a chart or its data."""
    shown = next((each for each in charts_of(alert) if each.kind in DRAWN_KINDS), None)
    if shown is None:
        return None
    window = alert_window(alert, now=at)
    moment = str(int(at.timestamp()))
    figure = incident_figure(
        source, alert, shown.name, window, at=moment, now=now, long_term=long_term
    )
    if isinstance(figure, Chart):
        drawn: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(figure.as_json()))
    elif isinstance(figure, bytes):
        drawn = msgspec.json.decode(figure)
    else:
        return None
    return png(drawn, title=shown.title, is_stack=shown.kind == "stack")


# A message older than this is read on its alert's page, which asks to sign in.
IMAGE_VALID_FOR = timedelta(days=30)


def image_url(alert: Alert, *, base_url: str, at: datetime) -> str:
    """Return the address of an alert's chart at a time, which needs no sign-in."""
    second = int(at.timestamp())
    query = urlencode({"at": second, "key": _key(alert.pk, second)})
    return f"{base_url}{reverse('alert-image', args=(alert.pk,))}?{query}"


def is_image_key(key: str, *, alert: int, at_s: int, now: datetime) -> bool:
    """Whether a key was made for the image of this alert at this time, and is still valid."""
    is_valid = at_s >= (now - IMAGE_VALID_FOR).timestamp()
    return constant_time_compare(key, _key(alert, at_s)) and is_valid


def _key(alert: int, at_s: int) -> str:
    return Signer(salt="alert-image").signature(f"{alert}.{at_s}")


def png(drawn: Mapping[str, Any], *, title: str, is_stack: bool = False) -> bytes | None:
    """Draw the data of a page's chart; None where no value is known.

    ``is_stack``: the series are layers, the first one at the bottom.
    """
    times = np.asarray(drawn["t"], float)
    series = [each for each in drawn["series"] if len(each["values"]) == len(times)]
    rows = np.array([each["values"] for each in series], float).reshape(len(series), len(times))
    if not np.isfinite(rows).any():
        return None
    if is_stack:
        rows = np.cumsum(np.nan_to_num(rows), axis=0)
    image = Image.new("RGB", SIZE, BACKGROUND)
    canvas = _Canvas(ImageDraw.Draw(image), drawn, times, rows)
    canvas.frame(title)
    if is_stack:
        canvas.layers(series)
    else:
        canvas.lines(series)
    canvas.limit()
    kept = io.BytesIO()
    # A palette is a quarter of the bytes.
    image.quantize(64).save(kept, "PNG", optimize=True)
    return kept.getvalue()


class _Canvas:
    """A chart being drawn: ``times`` (n,) Unix seconds, ``rows`` (n_series, n) values."""

    def __init__(
        self,
        draw: ImageDraw.ImageDraw,
        drawn: Mapping[str, Any],
        times: FloatArray,
        rows: FloatArray,
    ) -> None:
        self.draw, self.drawn, self.times, self.rows = draw, drawn, times, rows
        self.start, self.end = drawn["window"] or (times[0], times[-1])
        self.is_log = drawn["scale"] == "log"
        levels = [*rows[np.isfinite(rows) & ((rows > 0) | (not self.is_log))].tolist()]
        levels += [drawn["limit"]] if drawn["limit"] is not None else []
        levels += [level for level, _, _ in drawn["marks"]]
        low, high = min(levels, default=0.0), max(levels, default=1.0)
        self.low = low if drawn["scale"] != "linear" else min(0.0, low)
        self.high = high if high > self.low else self.low + 1.0
        self.right, self.bottom = SIZE[0] - RIGHT, SIZE[1] - BOTTOM

    def x(self, at_s: float) -> float:
        share = (at_s - self.start) / max(self.end - self.start, 1e-9)
        return float(LEFT + min(max(share, 0.0), 1.0) * (self.right - LEFT))

    def y(self, value: float) -> float:
        low, high, value = (
            (math.log(self.low), math.log(self.high), math.log(max(value, self.low)))
            if self.is_log
            else (self.low, self.high, value)
        )
        return float(self.bottom - (value - low) / (high - low) * (self.bottom - TOP) * FILLED)

    def levels(self) -> list[float]:
        """Round values for the horizontal lines."""
        if self.is_log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            round_ones = [10.0**power * n for power in powers for n in (1, 2, 5)]
            inside = [value for value in round_ones if self.low <= value <= self.high]
            return inside if len(inside) > 1 else [self.low, self.high]
        rough = (self.high - self.low) / N_LEVELS
        power = 10.0 ** math.floor(math.log10(rough))
        every = next(power * n for n in (1, 2, 2.5, 5, 10) if power * n >= rough)
        first = math.ceil(self.low / every)
        last = math.floor(self.high / every)
        return [every * i for i in range(first, last + 1)]

    def text(self, place: tuple[float, float], text: str, *, anchor: str, **more: Any) -> None:
        font = ImageFont.load_default(more.pop("size", SMALL))
        self.draw.text(place, plain(text), fill=more.get("fill", FAINT), font=font, anchor=anchor)

    def frame(self, title: str) -> None:
        """Draw the title, the time of the alert, and both axes."""
        self.text((16, 14), title, anchor="la", size=TEXT, fill=INK)
        for since, until, *_ in self.drawn["shade"]:
            edges = (self.x(since), TOP, self.x(until), self.bottom)
            self.draw.rectangle(edges, fill=AFFECTED)
        for value in self.levels():
            level = self.y(value)
            self.draw.line((LEFT, level, self.right, level), fill=GRID, width=2)
            self.text((LEFT - 12, level), written(value, self.drawn["unit"]), anchor="rm")
        moments = {self.start: "la", (self.start + self.end) / 2: "ma", self.end: "ra"}
        for at_s, anchor in moments.items():
            at = datetime.fromtimestamp(at_s, UTC)
            form = f"{at:%Y-%m-%d %H:%M:%S} UTC" if at_s == self.start else f"{at:%H:%M:%S}"
            self.text((self.x(at_s), self.bottom + 12), form, anchor=anchor)

    def lines(self, series: Sequence[Mapping[str, Any]]) -> None:
        """Draw quiet lines first, those that stand out last and with their name."""
        order = sorted(range(len(series)), key=lambda i: RANK.get(series[i]["role"], 1))
        named = []
        for i in order:
            role = series[i]["role"]
            colour = COLOURS.get(role or "", COLOURS["compute"])
            self._line(self.rows[i], colour, width=5 if role == "bad" else 2)
            if role != "muted":
                named.append((series[i]["label"], colour))
        if len(order) > len(named):
            named.insert(0, ("peers", COLOURS["muted"]))
        self._legend(named)

    def layers(self, series: Sequence[Mapping[str, Any]]) -> None:
        below = np.zeros(len(self.times))
        named = []
        for one, row in zip(series, self.rows, strict=True):
            colour = COLOURS.get(one["role"] or "", COLOURS["other"])
            if (row > below).any():
                there = [(self.x(t), self.y(v)) for t, v in zip(self.times, row, strict=True)]
                back = [(self.x(t), self.y(v)) for t, v in zip(self.times, below, strict=True)]
                if len(there) > 1:
                    self.draw.polygon([*there, *reversed(back)], fill=colour)
                named.append((one["label"], colour))
            below = row
        self._legend(named)

    def limit(self) -> None:
        """Draw the levels to compare with: the limit, the threshold and the peers."""
        levels = [(level, text) for level, text, _ in self.drawn["marks"]]
        if self.drawn["limit"] is not None:
            levels.append((self.drawn["limit"], ""))
        for level, text in levels:
            at = self.y(level)
            for x in range(LEFT, int(self.right), 16):
                self.draw.line((x, at, x + 8, at), fill=INK, width=2)
            if text:
                self.text((self.right - 6, at - 4), text, anchor="rb", fill=INK)

    def _line(self, values: FloatArray, colour: str, *, width: int) -> None:
        known = np.isfinite(values) & ((values > 0) | (not self.is_log))
        for part in np.split(np.arange(len(values)), np.flatnonzero(~known)):
            points = [(self.x(self.times[i]), self.y(values[i])) for i in part if known[i]]
            if len(points) > 1:
                self.draw.line(points, fill=colour, width=width, joint="curve")

    def _legend(self, named: Sequence[tuple[str, str]]) -> None:
        x, font = 16.0, ImageFont.load_default(SMALL)
        for label, colour in named[:MOST_NAMED]:
            self.draw.rectangle((x, 58, x + 18, 76), fill=colour)
            self.text((x + 26, 67), label, anchor="lm")
            x += 26 + font.getlength(plain(label)) + 26


def plain(text: str) -> str:
    """Replace the spaces and signs that the built-in font does not have."""
    return text.translate(
        {0x202F: " ", 0xA0: " ", 0x2009: " ", 0x2212: "-", 0x2013: "-", 0xB5: "u"}
    )
