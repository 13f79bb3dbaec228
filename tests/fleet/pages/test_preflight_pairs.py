"""All pairs of a preflight as CSV."""

import csv
from io import StringIO

import pytest
from django.test import Client

from telemetry.simulate.preflight import ProbeFault
from tests.fleet.pages.preflights import asked, done

pytestmark = pytest.mark.django_db


def test_a_spreadsheet_gets_every_pair_once(client: Client) -> None:
    fault = ProbeFault.of_kind("pair_silent", "n-00", peer="n-01")
    preflight = done(faults=[fault], take=None)

    response = client.get(f"/preflight/{preflight.pk}/pairs")

    rows = list(csv.DictReader(StringIO(response.text)))
    assert len(rows) == 120
    assert rows[0] == {
        "node": "n-00",
        "peer": "n-01",
        "p50_s": "",
        "p99_s": "",
        "bandwidth_bytes_per_s": "0",
    }
    assert 14e-6 < float(rows[1]["p50_s"]) < 28e-6
    assert response["Content-Disposition"].endswith(f'"preflight-{preflight.pk}-pairs.csv"')


def test_nothing_probed_is_an_empty_table_and_no_one_is_not_found(client: Client) -> None:
    assert client.get(f"/preflight/{asked().pk}/pairs").text.count("\n") == 1
    assert client.get("/preflight/999999/pairs").status_code == 404
