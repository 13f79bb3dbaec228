"""The rules of the house: short files, documented parts, locks without addresses."""

import ast
import json
import re
from pathlib import Path

import pytest
from django.urls import URLPattern

from fleet.urls import urlpatterns
from fleet.version import VERSION
from telemetry.blocks import METRICS
from telemetry.detect import RULES
from telemetry.simulate.kinds import BENIGN, FAULTS

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("bench", "fleet", "telemetry", "tests", "tools", "trnwatch")
SOURCES = sorted(
    path
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")
    if "migrations" not in path.parts
)
PAGES = sorted((ROOT / "templates").rglob("*.html"))
SCRIPTS = sorted(p for ext in ("css", "js") for p in (ROOT / "fleet/static").rglob(f"*.{ext}"))
WRITTEN = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "Makefile", "pyproject.toml", "*.json", "*.in")
    for path in ROOT.glob(pattern)
)
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
TEST_FILES = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
LONGEST_FILE = 250
LONGEST_PAGE = 120
LONGEST_FUNCTION = 30


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function below its docstring."""
    top = function.lineno
    if ast.get_docstring(function):
        top = function.body[0].end_lineno or top
    return (function.end_lineno or top) - top


def functions_of(tree: ast.AST) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_module_is_short_and_says_what_it_holds(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)

    assert len(text.splitlines()) <= LONGEST_FILE
    assert ast.get_docstring(tree) or not text.strip() or "tests" in path.parts
    assert [f.name for f in functions_of(tree) if code_lines(f) > LONGEST_FUNCTION] == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_nothing_is_imported_inside_a_function(path: Path) -> None:
    inside = [
        ast.unparse(node)
        for function in functions_of(ast.parse(path.read_text()))
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]

    assert inside == []


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_a_page_is_short_and_has_neither_script_nor_style_in_it(path: Path) -> None:
    text = path.read_text()

    assert len(text.splitlines()) <= LONGEST_PAGE
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=", text) == []


@pytest.mark.parametrize("path", SCRIPTS, ids=name_of)
def test_a_script_or_a_style_sheet_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_FILE


@pytest.mark.parametrize("path", [*SOURCES, *PAGES, *SCRIPTS, *WRITTEN, *LOCKS], ids=name_of)
def test_nothing_speaks_of_the_place_it_was_written_in(path: Path) -> None:
    text = path.read_text()
    outside = [
        step
        for step in re.findall(r"(?:\.\./)+[\w.-]+", text)
        if not (path.parent / step).resolve().is_relative_to(ROOT)
    ]

    assert outside == []
    assert f"{ROOT}/" not in text


@pytest.mark.parametrize("page", [p.name for p in urlpatterns if isinstance(p, URLPattern)])
def test_an_address_has_a_test_file_of_its_own(page: str) -> None:
    assert f"test_{page.replace('-', '_')}" in TEST_FILES


def headings(document: str) -> set[str]:
    """Return the headings of a document, without marks."""
    text = (ROOT / document).read_text()
    return {line.lstrip("#").strip(" `") for line in text.splitlines() if line.startswith("#")}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_documented(name: str) -> None:
    assert name in headings("docs/metrics.md")


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_documented_and_has_a_runbook(name: str) -> None:
    assert name in headings("docs/rules.md")
    assert (ROOT / f"docs/runbooks/{name}.md").exists()


@pytest.mark.parametrize("name", [*FAULTS, *BENIGN])
def test_a_fault_is_documented(name: str) -> None:
    assert name in headings("docs/faults.md")


READ = re.compile(
    r"""(?:environ(?:\.get\(|\[)|ENV\.(?:text|flag|whole_number|names)\()\s*["'](\w+)["']"""
)
ANSWERED_BY_OTHERS = {"CI", "DJANGO_SETTINGS_MODULE", "PIP_CERT"}


def settings_read() -> set[str]:
    """Return the names of all environment variables that the service reads."""
    found = set()
    for path in SOURCES:
        # What the agent on a node is told stands in docs/agent.md, and is tested beside it.
        room, *rest = path.relative_to(ROOT).parts
        if room in {"fleet", "telemetry"} and rest[0] != "agent":
            found |= set(READ.findall(path.read_text()))
            found |= set(re.findall(r"""["'](TRNWATCH_\w+)["']""", path.read_text()))
    return found - ANSWERED_BY_OTHERS


@pytest.mark.parametrize("name", sorted(settings_read()))
def test_a_setting_is_documented(name: str) -> None:
    assert f"| `{name}` |" in (ROOT / "docs/operations.md").read_text()


def test_every_documented_setting_exists() -> None:
    table = (ROOT / "docs/operations.md").read_text()
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", table, flags=re.MULTILINE))

    assert documented - settings_read() == set()


@pytest.mark.parametrize("path", sorted((ROOT / "docs/decisions").glob("*.md")), ids=name_of)
def test_a_decision_is_numbered_and_short(path: Path) -> None:
    assert re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", path.name)
    assert len(path.read_text().splitlines()) <= 40


LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")


@pytest.mark.parametrize("path", [p for p in WRITTEN if p.suffix == ".md"], ids=name_of)
def test_a_link_between_documents_leads_somewhere(path: Path) -> None:
    assert [to for to in LINK.findall(path.read_text()) if not (path.parent / to).exists()] == []


def test_the_version_comes_from_the_changelog() -> None:
    assert f"\n## {VERSION}" in (ROOT / "CHANGELOG.md").read_text()
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)


@pytest.mark.parametrize("path", LOCKS, ids=name_of)
def test_a_lock_has_hashes_and_no_address(path: Path) -> None:
    text = path.read_text()
    pinned = re.findall(r"^[\w.\[\]-]+==", text, flags=re.MULTILINE)

    assert "://" not in text
    assert "--index" not in text
    assert text.count("--hash=sha256:") >= len(pinned) > 0


@pytest.mark.parametrize("path", LOCKS, ids=name_of)
def test_a_lock_holds_all_that_was_asked_for(path: Path) -> None:
    wanted = re.findall(r"^\w[\w-]*", path.with_suffix(".in").read_text(), flags=re.MULTILINE)
    locked = set(re.findall(r"^[\w-]+(?===)", path.read_text(), flags=re.MULTILINE))

    assert set(wanted) - locked == set()


def test_what_runs_and_what_is_tested_are_the_same_versions() -> None:
    base, dev = (
        set(re.findall(r"^[\w.\[\]-]+==[^\s\\]+", path.read_text(), flags=re.MULTILINE))
        for path in (ROOT / "requirements/base.txt", ROOT / "requirements/dev.txt")
    )

    assert base - dev == set()


def test_the_front_end_lock_has_hashes_and_no_address() -> None:
    text = (ROOT / "package-lock.json").read_text()
    packages = [package for name, package in json.loads(text)["packages"].items() if name]

    assert "resolved" not in text
    assert "://" not in text
    assert all(package["integrity"].startswith("sha512-") for package in packages)
