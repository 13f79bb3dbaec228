"""A new silence: matchers, end, reason, and a guard against muting everything."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client

from fleet.models import Alert, Silence
from tests.helpers import just_now

Page = Callable[..., str]
GIVEN = {"matchers": "run=llama", "span": "1h", "reason": "rack is moved"}


def test_the_form_begins_empty_and_states_what_that_would_mute(
    page: Page, alert: Alert, operator: User
) -> None:
    reported = page("/silences/new/")

    assert "until tomorrow 09:00 UTC" in reported
    assert "Open now: 1 of 1" in reported
    assert "Confirm: this silences <b>every alert</b>" in reported


def test_it_is_filled_in_for_an_alert(page: Page, alert: Alert, operator: User) -> None:
    reported = page(f"/silences/new/?alert={alert.pk}")

    assert 'value="node=limping cause=slow_core"' in reported
    assert f"in progress: alert {alert.pk}" in reported


def test_an_alert_that_is_none_is_not_found(client: Client, operator: User) -> None:
    assert client.get("/silences/new/?alert=999").status_code == 404
    assert client.get("/silences/new/?alert=x").status_code == 200


def test_it_silences_and_shows_the_silence(client: Client, alert: Alert, operator: User) -> None:
    response = client.post("/silences/new/", GIVEN)

    silence = Silence.objects.get()
    assert response["Location"] == f"/silences/{silence.pk}/"
    assert (silence.matchers, silence.reason, silence.by) == ("run=llama", "rack is moved", "olga")
    assert silence.ends_at - silence.starts_at == timedelta(hours=1)
    alert.refresh_from_db()
    assert alert.silence == silence
    assert alert.events.filter(kind="silenced", by="olga").exists()


def test_htmx_is_led_to_the_silence_too(client: Client, operator: User) -> None:
    response = client.post("/silences/new/", GIVEN, headers={"HX-Request": "true"})

    assert response["HX-Redirect"] == f"/silences/{Silence.objects.get().pk}/"


def test_until_a_day(client: Client, operator: User) -> None:
    until = (just_now() + timedelta(days=2)).replace(second=0, microsecond=0)
    client.post(
        "/silences/new/", GIVEN | {"span": "until", "until": until.strftime("%Y-%m-%dT%H:%M")}
    )

    assert Silence.objects.get().ends_at == until


@pytest.mark.parametrize(
    ("field", "wrong", "shown"),
    [
        ("matchers", {"matchers": "color=red"}, "is not a field. Use one of"),
        ("matchers", {"matchers": "run=~("}, "run: the pattern '(' is invalid"),
        ("matchers", {"matchers": "run=" + "x" * 500}, "is longer than 500 characters"),
        ("matchers", {"matchers": ""}, "these match every alert"),
        ("reason", {"reason": "  "}, "is empty. Say why"),
        ("reason", {"reason": "x" * 501}, "is longer than 500 characters"),
        ("until", {"span": "until", "until": ""}, "is empty. Give a date and time"),
        ("until", {"span": "until", "until": "2020-01-01T00:00"}, "is not in the future"),
        ("until", {"span": "until", "until": "soon"}, "Enter a date and time"),
        ("span", {"span": ""}, "Choose a duration"),
        ("span", {"span": "9h"}, "9h is not one of 1h, 4h"),
    ],
)
def test_an_invalid_value_is_reported_at_its_field_and_kept(
    client: Client, operator: User, field: str, wrong: dict[str, str], shown: str
) -> None:
    response = client.post("/silences/new/", GIVEN | wrong)
    form = response.context["form"]

    assert response.status_code == 422
    assert list(form.errors) == [field]
    assert shown in form.errors[field][0]
    assert f'id="id_{field}_error"' in response.text
    assert re.search(f'aria-describedby="[^"]*id_{field}_error"', response.text)
    assert 'aria-invalid="true"' in response.text
    assert {name: form[name].value() for name in GIVEN} == GIVEN | {
        name: value for name, value in wrong.items() if name != "until"
    }
    assert not Silence.objects.exists()


def test_everything_is_muted_only_if_that_is_meant(
    client: Client, fired: Callable[..., Alert], operator: User
) -> None:
    for i in range(3):
        fired(subject=f"run:{i}")
    all_of_it = GIVEN | {"matchers": "rule=allreduce_share"}

    refused = client.post("/silences/new/", all_of_it)
    assert refused.status_code == 422
    assert "all 3 open ones and all 0 of the last 7 days" in refused.text
    assert "Confirm: this silences every alert" in refused.text

    client.post("/silences/new/", all_of_it | {"confirmed": "yes"})
    assert Silence.objects.get().matchers == "rule=allreduce_share"


def test_it_gives_htmx_only_the_part_it_asks_for(page: Page, operator: User) -> None:
    reported = page("/silences/new/", **{"HX-Request": "true", "HX-Target": "silence-form"})

    assert reported.strip().startswith('<div class="cols" id="silence-form"')
