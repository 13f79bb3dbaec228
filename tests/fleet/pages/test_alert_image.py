"""The chart of an alert as a PNG: only by its signed address."""

import io
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from django.test import Client
from numpy.typing import NDArray
from PIL import Image

from fleet.charts.image import COLOURS, IMAGE_VALID_FOR, SIZE, image_url, is_image_key, png
from fleet.models import Alert
from tests.helpers import just_now

Fire = Callable[..., Alert]


def path(alert: Alert) -> str:
    address = urlsplit(image_url(alert, base_url="https://trnwatch.example", at=just_now()))
    return f"{address.path}?{address.query}"


def pixels(content: bytes, role: str) -> NDArray[np.bool_]:
    """Whether each pixel below the legend has the colour of a role: (height, width)."""
    image = Image.open(io.BytesIO(content)).convert("RGB")
    assert image.size == SIZE
    colour = np.array([*bytes.fromhex(COLOURS[role][1:])])
    found = np.abs(np.asarray(image, int) - colour).sum(axis=2) < 40
    found[:90] = False
    return np.asarray(found)


def test_the_signed_address_needs_no_sign_in(alert: Alert) -> None:
    response = Client().get(path(alert), REMOTE_ADDR="192.0.2.7")

    assert response.status_code == 200
    assert response["Content-Type"] == "image/png"
    assert pixels(response.content, "compute").sum() > 1_000
    assert pixels(response.content, "wait").sum() > 100


@pytest.mark.parametrize("change", ["key", "at", "pk", "none"])
def test_another_address_is_not_found(client: Client, alert: Alert, change: str) -> None:
    address = urlsplit(path(alert))
    query = {name: values[0] for name, values in parse_qs(address.query).items()}
    place = address.path
    if change == "key":
        query["key"] = query["key"][:-1] + ("A" if query["key"][-1] != "A" else "B")
    elif change == "at":
        query["at"] = str(int(query["at"]) - 60)
    elif change == "pk":
        place = place.replace(str(alert.pk), str(alert.pk + 1))
    else:
        query = {}
    assert client.get(place, query).status_code == 404


def test_an_alert_without_a_chart_has_no_image(fired: Fire, client: Client) -> None:
    alert = fired(rule="budget_overrun", cause="unknown", subject="budget:team", run=None)
    assert client.get(path(alert)).status_code == 404


def test_gaps_are_not_bridged_and_an_empty_chart_is_none() -> None:
    drawn = {
        "t": list(range(100)),
        "series": [{"label": "x", "values": [1.0] * 40 + [None] * 20 + [1.0] * 40, "role": "bad"}],
        "unit": "ratio",
        "scale": "linear",
        "limit": None,
        "marks": [],
        "shade": [],
        "window": [0, 99],
    }
    content = png(drawn, title="A gap")
    assert content is not None
    columns = np.flatnonzero(pixels(content, "bad").any(axis=0))
    span = columns[-1] - columns[0]
    assert np.diff(columns).max() == pytest.approx(0.2 * span, rel=0.2)

    nothing = drawn | {"series": [{"label": "x", "values": [None] * 100, "role": None}]}
    assert png(nothing, title="Nothing") is None


def test_the_address_expires(alert: Alert) -> None:
    at = just_now()
    query = parse_qs(urlsplit(image_url(alert, base_url="", at=at)).query)
    [key], at_s = query["key"], int(query["at"][0])

    def is_valid(age: timedelta) -> bool:
        return is_image_key(key, alert=alert.pk, at_s=at_s, now=at + age)

    assert is_valid(timedelta())
    assert is_valid(IMAGE_VALID_FOR - timedelta(minutes=1))
    assert not is_valid(IMAGE_VALID_FOR + timedelta(minutes=1))


@pytest.mark.parametrize(
    "at", ["9" * 5_000, str(10**30), "-1", "NaN", "\u0663", "1e3", " 1"], ids=lambda text: text[:9]
)
def test_a_time_that_is_none_is_not_found(client: Client, alert: Alert, at: str) -> None:
    assert client.get(f"/alerts/{alert.pk}/chart.png", {"at": at, "key": "x"}).status_code == 404
