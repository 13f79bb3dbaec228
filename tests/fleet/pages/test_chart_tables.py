"""Charts without JavaScript: a table for people, JSON for scripts."""

import pytest
from django.test import Client

from fleet.models import Run

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
CHARTS = (
    "/overview/shares",
    "/runs/llama/charts/phases?window=15m",
    "/runs/llama/charts/workers",
    "/nodes/limping/charts/core-heat",
    "/nodes/limping/charts/memory?window=1h",
)


@pytest.mark.parametrize("address", CHARTS)
def test_a_person_reads_a_table(client: Client, alive: Run, address: str) -> None:
    response = client.get(address, headers=BROWSER)

    assert response.status_code == 200
    assert "<table" in response.text
    assert "Accept" in response["Vary"]


@pytest.mark.parametrize("address", CHARTS)
def test_a_script_reads_json(client: Client, alive: Run, address: str) -> None:
    response = client.get(address, headers={"Accept": "application/json"})

    assert response["Content-Type"] == "application/json"
    assert "Accept" in response["Vary"]


def test_the_table_leads_back_to_its_page_and_window(client: Client, alive: Run) -> None:
    page = client.get("/runs/llama/charts/share?window=1h", headers=BROWSER).text

    assert '<a href="/runs/llama/?window=1h">back to llama</a>' in page
    assert "<h1>Share of llama</h1>" in page
