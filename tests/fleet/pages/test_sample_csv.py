"""All readings of a sample as CSV."""

import csv

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from fleet.models import Node
from tests.fleet.samples import requested, taken

pytestmark = pytest.mark.django_db


def test_it_has_every_reading_of_every_source(client: Client, steady: Node) -> None:
    row = taken(steady, now=timezone.now(), n=12, n_cores=2)
    response = client.get(f"/nodes/steady/samples/{row.pk}.csv")
    rows = list(csv.DictReader(response.text.splitlines()))

    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert f'filename="steady-sample-{row.pk}.csv"' in response["Content-Disposition"]
    assert len(rows) == 11 * (2 + 2 + 2)
    first = rows[0]
    assert (first["source"], first["part"], first["value"]) == ("monitor", "0", "0.25")
    assert (first["unit"], first["over_s"]) == ("ratio", "0.100")
    after_gap = [each for each in rows if each["source"] == "efa_tx" and each["part"] == "0"][9]
    assert (after_gap["value"], after_gap["unit"]) == ("1000000", "bytes")
    assert after_gap["over_s"] == "0.200"


def test_without_a_sample_it_is_not_found(client: Client, steady: Node, operator: User) -> None:
    row = requested(steady, now=timezone.now())

    assert client.get(f"/nodes/steady/samples/{row.pk}.csv").status_code == 404
    assert client.post(f"/nodes/steady/samples/{row.pk}.csv").status_code == 405
