"""Style sheets and scripts are served complete, also by an ASGI server."""

import re
from graphlib import TopologicalSorter
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.contrib.staticfiles import finders

SHEET = "fleet/tokens.css"


def got(address: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Fetch a path and return status, headers and body."""
    connection = HTTPConnection(urlsplit(address).netloc)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    answer = response.status, dict(response.getheaders()), response.read()
    connection.close()
    return answer


def test_a_style_sheet_comes_whole(address: str) -> None:
    found = finders.find(SHEET)
    assert found

    status, headers, body = got(address, f"/static/{SHEET}")

    assert status == 200
    assert headers["content-type"].startswith("text/css")
    assert body == Path(found).read_bytes()


def test_a_part_of_a_file_can_be_asked_for(address: str) -> None:
    status, headers, body = got(address, f"/static/{SHEET}", Range="bytes=3-8")

    assert (status, len(body), headers["content-length"]) == (206, 6, "6")


def test_what_is_known_already_is_not_sent_again(address: str) -> None:
    _, headers, _ = got(address, f"/static/{SHEET}")

    again = got(address, f"/static/{SHEET}", **{"If-Modified-Since": headers["last-modified"]})

    assert (again[0], again[2]) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "vendor/uplot/dist/uPlot.esm.js",
        "vendor/uplot/dist/uPlot.min.css",
        "vendor/idiomorph/dist/idiomorph-ext.min.js",
        "django_htmx/htmx-2.min.js",
    ],
)
def test_what_the_pages_lean_on_is_there(path: str) -> None:
    assert finders.find(path)


def test_no_script_imports_itself_through_others() -> None:
    folder = Path(str(finders.find("fleet/main.js"))).parent
    graph = {
        path.name: re.findall(r'from "\./([\w-]+\.js)"', path.read_text())
        for path in folder.glob("*.js")
    }

    assert "chart-base.js" in graph["chart-kinds.js"]
    list(TopologicalSorter(graph).static_order())
