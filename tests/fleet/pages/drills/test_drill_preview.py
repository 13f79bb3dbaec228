"""Preview of a fault's effect before it is injected."""

from collections.abc import Callable

from django.contrib.auth.models import User
from django.test import Client

from fleet.models import InjectedFault, Run

Page = Callable[..., str]
PREVIEW = "/drills/preview?run=llama&kind={kind}&node=llama-01&duration_s=120"


def test_it_shows_how_much_longer_steps_take(page: Page, simulated: Run, operator: User) -> None:
    text = page(PREVIEW.format(kind="slow_core") + "&device=7&magnitude=2")

    assert text.strip().startswith('<section class="panel" id="preview"')
    assert "with this fault" in text
    assert "Expected detection within" in text
    assert "Cost: about" in text


def test_it_shows_that_only_hardware_shows_it(page: Page, simulated: Run, operator: User) -> None:
    assert "Only hardware metrics do" in page(PREVIEW.format(kind="node_silent"))


def test_it_shows_that_no_step_gets_on(page: Page, simulated: Run, operator: User) -> None:
    assert "llama makes no progress" in page(PREVIEW.format(kind="node_crash"))


def test_it_shows_that_a_fault_is_too_faint(page: Page, simulated: Run, operator: User) -> None:
    text = page(PREVIEW.format(kind="input_stall") + "&magnitude=0")

    assert "Too small to require detection" in text


def test_what_does_not_fit_is_asked_for(page: Page, simulated: Run, operator: User) -> None:
    text = page(PREVIEW.format(kind="slow_core") + "&magnitude=4711")

    assert "Complete the form" in text


def test_it_breaks_nothing(page: Page, simulated: Run, operator: User) -> None:
    page(PREVIEW.format(kind="slow_core"))

    assert not InjectedFault.objects.exists()


def test_an_unknown_name_is_not_found(client: Client, simulated: Run, operator: User) -> None:
    assert client.get("/drills/preview?run=missing").status_code == 404
