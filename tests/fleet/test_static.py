"""Style sheets and scripts are served complete, also by an ASGI server."""

import gzip
import posixpath
import re
from graphlib import TopologicalSorter
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.contrib.staticfiles import finders
from django.test import Client
from pytest_django import Settings

from fleet.ops.static_files import collect_if_needed

HASHED = "fleet.ops.static_files.HashedStorage"
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


def test_a_missing_file_is_not_found(address: str) -> None:
    assert got(address, "/static/fleet/no-such.js")[0] == 404


def test_files_are_collected_once_until_one_changes(settings: Settings, tmp_path: Path) -> None:
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": HASHED}}
    ours = tmp_path / "sources" / "fleet"
    ours.mkdir(parents=True)
    (ours / "extra.js").write_text('import { a } from "./other.js";\n')
    (ours / "other.js").write_text("export const a = 1;\n")
    settings.STATICFILES_DIRS = [ours.parent]
    settings.STATICFILES_FINDERS = ["fleet.ops.static_files.PackageFinder"]
    settings.STATIC_ROOT = tmp_path / "static"

    assert collect_if_needed(settings.STATIC_ROOT)
    assert not collect_if_needed(settings.STATIC_ROOT)
    [before] = (settings.STATIC_ROOT / "fleet").glob("extra.*.js")
    (ours / "other.js").write_text("export const a = 22;\n")
    assert collect_if_needed(settings.STATIC_ROOT)

    # What imports a changed file has another name, too.
    [after] = (settings.STATIC_ROOT / "fleet").glob("extra.*.js")
    [other] = (settings.STATIC_ROOT / "fleet").glob("other.*.js")
    assert after.name != before.name
    assert f'from "./{other.name}"' in after.read_text()


def test_a_page_names_every_module_that_it_will_need(client: Client, db: None) -> None:
    page = client.get("/sign-in/").text
    preloaded = set(re.findall(r'rel="modulepreload" href="/static/([^"]+)"', page))
    needed = {
        posixpath.normpath(f"fleet/{path}")
        for name in {*preloaded, "fleet/main.js"}
        if name.startswith("fleet/")
        for path in re.findall(r'from "(\.[^"]+)"', Path(str(finders.find(name))).read_text())
    }

    assert "vendor/uplot/dist/uPlot.esm.js" in needed
    assert preloaded == needed


def test_pages_are_compressed(client: Client, db: None) -> None:
    packed = client.get("/sign-in/", headers={"accept-encoding": "gzip"})

    assert packed["Content-Encoding"] == "gzip"
    assert b"</html>" in gzip.decompress(packed.content)


def test_no_script_imports_itself_through_others() -> None:
    folder = Path(str(finders.find("fleet/main.js"))).parent
    graph = {
        path.name: re.findall(r'from "\./([\w-]+\.js)"', path.read_text())
        for path in folder.glob("*.js")
    }

    assert "chart-base.js" in graph["chart-kinds.js"]
    list(TopologicalSorter(graph).static_order())
