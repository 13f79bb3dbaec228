"""The first load of a page as it is installed: few bytes, to be kept for a year."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.asgi import get_asgi_application
from playwright.sync_api import Page, Response, expect
from pytest_django import Settings

from fleet.models import Alert
from fleet.ops.static_files import collect_if_needed
from tests.web_server import served

pytestmark = pytest.mark.browser

MOST_BYTES = 120_000
HASHED = "fleet.ops.static_files.HashedStorage"


@pytest.fixture
def address(
    transactional_db: None, redis_url: str, settings: Settings, tmp_path: Path
) -> Iterator[str]:
    """Serve collected files; gives the address."""
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": HASHED}}
    settings.WHITENOISE_AUTOREFRESH = settings.WHITENOISE_USE_FINDERS = False
    settings.STATIC_ROOT = tmp_path / "static"
    assert collect_if_needed(settings.STATIC_ROOT)
    # A changed setting makes Django read the manifest.
    settings.STATIC_ROOT = str(settings.STATIC_ROOT)
    with served(get_asgi_application()) as url:
        yield url


def test_scripts_are_small_and_every_file_is_kept_for_a_year(page: Page, fleet: str) -> None:
    for path in ("/", "/runs/llama/", f"/alerts/{Alert.objects.get().pk}/"):
        with page.expect_response(fleet + path) as answered:
            files = first_load(page, fleet + path)
        scripts = [each for each in files if each.request.resource_type == "script"]

        assert answered.value.headers["content-encoding"] == "gzip"
        assert len(scripts) > 20
        assert sum(each.request.sizes()["responseBodySize"] for each in scripts) < MOST_BYTES
        for each in files:
            assert each.status == 200
            assert each.headers["cache-control"] == "max-age=31536000, public, immutable", each.url
            assert each.headers["content-encoding"] in {"br", "gzip"}, each.url


def first_load(page: Page, address: str) -> list[Response]:
    """Open a page with an empty cache until it is live; gives the static files that it took."""
    page.context.new_cdp_session(page).send("Network.clearBrowserCache")
    responses: list[Response] = []
    page.on("response", lambda response: responses.append(response))  # noqa: PLW0108
    page.goto(address)
    expect(page.locator("#clock")).to_have_attribute("data-state", "live")
    expect(page.locator("figure.chart[data-state=loading]")).to_have_count(0)
    return [each for each in responses if "/static/" in each.url]
