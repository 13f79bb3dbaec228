"""Run charts as JSON: parts add up to the step, the limit is the run's own."""

import numpy as np
import pytest
from django.test import Client

from fleet.models import Run


def chart(client: Client, name: str) -> dict[str, list[float]]:
    figure = client.get(f"/runs/llama/charts/{name}").json()
    return {line["label"]: line["values"] for line in figure["series"]}


def test_the_phases_add_up_to_the_step(client: Client, alive: Run) -> None:
    layers = chart(client, "phases")

    np.testing.assert_allclose(np.sum(list(layers.values()), axis=0), 2.0, rtol=1e-3)


def test_the_share_is_waiting_and_transferring(client: Client, alive: Run) -> None:
    lines = chart(client, "share")

    np.testing.assert_allclose(
        np.add(lines["waiting"], lines["transferring"]), lines["all-reduce"], atol=1e-3
    )


def test_its_limit_is_the_run_s_own(client: Client, alive: Run) -> None:
    Run.objects.update(allreduce_limit_ratio=0.3)

    assert client.get("/runs/llama/charts/share").json()["limit"] == 0.3


def test_the_culprit_waits_least(client: Client, alive: Run) -> None:
    figure = client.get("/runs/llama/charts/workers").json()
    waits = dict(zip(figure["labels"], figure["series"][0]["values"], strict=True))

    assert min(waits, key=waits.__getitem__) == "limping"


def test_tokens_and_price_agree(client: Client, alive: Run) -> None:
    per_s, per_mtok = chart(client, "tokens")["tokens"][-1], chart(client, "cost")
    usd_per_s = 4 * 21.5 / 3600

    assert per_mtok["$ per 1M tokens"][-1] == pytest.approx(usd_per_s / per_s * 1e6, rel=0.02)


@pytest.mark.parametrize("name", ["phases", "share", "workers", "tokens", "cost", "mfu"])
def test_a_window_without_steps_is_empty(client: Client, alive: Run, name: str) -> None:
    query = "from=1700000000&to=1700003600"
    figure = client.get(f"/runs/llama/charts/{name}?{query}").json()

    assert figure["t"] == []


def test_a_bad_window_is_refused(client: Client, alive: Run) -> None:
    response = client.get("/runs/llama/charts/phases?window=x")

    assert response.status_code == 400
    assert response.json()["error"]["field"] == "window"


@pytest.mark.parametrize("path", ["/runs/llama/charts/weather", "/runs/missing/charts/share"])
def test_it_does_not_know_other_charts_or_runs(client: Client, alive: Run, path: str) -> None:
    assert client.get(path).status_code == 404
