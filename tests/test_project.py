"""Rules for the project itself: documents match the code, lock files are complete."""

import ast
import json
import re
from pathlib import Path

from django.urls import URLPattern

from fleet.urls import urlpatterns
from fleet.version import VERSION
from telemetry.blocks import METRICS
from telemetry.detect import RULES
from tests.conftest import SENT_BY_OTHERS

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("bench", "drills", "fleet", "importers", "telemetry", "tests", "tools", "trnwatch")
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
PAGES = sorted((ROOT / "templates").rglob("*.html"))
SENTENCES = sorted((ROOT / "templates").rglob("*.txt"))
# Their line breaks are text: of messages, and of Markdown.
BREAKS_ARE_TEXT = {"_quality.txt", "mail.txt", "push.txt", "slack_alert.txt", "title.txt"}
ASSETS = sorted(p for ext in ("css", "js") for p in (ROOT / "fleet/static").rglob(f"*.{ext}"))
WRITTEN = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "Makefile", "pyproject.toml", "*.json", "*.in")
    for path in ROOT.glob(pattern)
)
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
OPERATIONS = (ROOT / "docs/operations.md").read_text()

OUTSIDE = re.compile(r"(?:\.\./)+[\w.-]+")
IN_PAGE_CODE = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son[a-z]+=")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
# A path in the text of a document; templates of paths (`<name>`, `${…}`) are left out.
FOLDERS = "bench|deploy|docs|drills|fleet|importers|telemetry|templates|tests|tools|trnwatch"
PATH = re.compile(rf"(?<![\w/.:~-])(?:{FOLDERS})/[\w./*-]*\w(?![\w/]*[@<{{])")
# Made by an operator, not part of the repository.
MADE_LATER = ("deploy/secrets",)
READ = re.compile(
    r"""(?:environ(?:\.get\(|\[)|ENV\.(?:text|flag|whole_number|names)\()\s*["'](\w+)["']"""
)
PINNED = re.compile(r"^[\w.\[\]-]+==[^\s\\]+", flags=re.MULTILINE)
# A test of the number of queries, of what is committed, of a constraint or of migrations.
ASKS_SQL = re.compile(
    r"django_assert_(max_)?num_queries|transaction=True|IntegrityError|MigrationExecutor"
)
IN_A_BROWSER = re.compile(r"mark\.(browser|prometheus)\b")
ANSWERED_BY_OTHERS = {"CI", "DJANGO_SETTINGS_MODULE", "DJANGO_SUPERUSER_USERNAME", "PIP_CERT"}
# Those who start programs set them: no person does.
ANSWERED_BY_OTHERS |= {"TRNWATCH_NOTIFY_FD", "TRNWATCH_PROGRAM", "TRNWATCH_SUPERVISOR"}


# A module asks the traits of a rule, so that a new rule needs no second list.
ASKS_TRAITS = ("alerts", "charts", "costs", "metrics", "notifications", "pages")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def headings(document: str) -> set[str]:
    """Return the headings of a document, without marks."""
    text = (ROOT / document).read_text()
    return {line.lstrip("#").strip(" `") for line in text.splitlines() if line.startswith("#")}


def settings_read() -> set[str]:
    """Return the environment variables that the service reads.

    The agent's options are in docs/agent.md and tested with the agent.
    """
    found: set[str] = set()
    for path in SOURCES:
        package, *rest = path.relative_to(ROOT).parts
        if package in {"drills", "fleet", "importers", "telemetry"} and rest[0] != "agent":
            text = path.read_text()
            found |= {*READ.findall(text), *re.findall(r"""["'](TRNWATCH_\w+)["']""", text)}
    return found - ANSWERED_BY_OTHERS


# Text


def test_nothing_speaks_of_the_place_it_was_written_in() -> None:
    files = {path: path.read_text() for path in [*SOURCES, *PAGES, *ASSETS, *WRITTEN, *LOCKS]}
    outside = [
        f"{named(path)}: {step}"
        for path, text in files.items()
        for step in OUTSIDE.findall(text)
        if not (path.parent / step).resolve().is_relative_to(ROOT)
    ]

    assert outside == []
    assert [named(path) for path, text in files.items() if f"{ROOT}/" in text] == []


def test_a_page_has_neither_script_nor_style_in_it() -> None:
    # Mail programs read no style sheets; the preview has a policy of its own.
    pages = [path for path in PAGES if path.name not in {"mail.html", "preview.html"}]
    found = {named(path): IN_PAGE_CODE.findall(path.read_text()) for path in pages}

    assert len(PAGES) > 50
    assert {name: code for name, code in found.items() if code} == {}


def test_a_template_has_no_line_of_more_than_160_columns() -> None:
    files = [*PAGES, *(path for path in SENTENCES if path.name not in BREAKS_ARE_TEXT)]
    long = [
        f"{named(path)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if len(line) > 160
    ]

    assert len(files) > 50
    assert long == []


def test_a_link_between_documents_leads_somewhere() -> None:
    dead = [
        f"{named(path)}: {to}"
        for path in WRITTEN
        if path.suffix == ".md"
        for to in LINK.findall(path.read_text())
        if not (path.parent / to).exists()
    ]

    assert dead == []


def test_a_path_in_a_document_exists() -> None:
    dead = [
        f"{named(document)}: {path}"
        for document in WRITTEN
        if document.suffix == ".md"
        for path in PATH.findall(document.read_text())
        if not path.startswith(MADE_LATER) and not any(ROOT.glob(path))
    ]

    assert dead == []


def test_a_decision_is_numbered_and_short() -> None:
    decisions = sorted((ROOT / "docs/decisions").glob("*.md"))

    assert [p.name for p in decisions if not re.fullmatch(r"\d{4}-[a-z0-9-]+\.md", p.name)] == []
    assert [p.name for p in decisions if len(p.read_text().splitlines()) > 40] == []


# Each part has its documentation and its test


def test_each_page_has_a_test_file_of_its_name() -> None:
    files = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    pages = [str(each.name) for each in urlpatterns if isinstance(each, URLPattern)]

    missing = [name for name in pages if f"test_{name.replace('-', '_')}" not in files]

    assert missing == [], "tests/fleet/pages: add test_<name of the page>.py"


def test_each_metric_is_documented() -> None:
    assert set(METRICS) - headings("docs/metrics.md") == set(), "docs/metrics.md: add a heading"


def test_each_setting_is_documented_and_each_documented_setting_exists() -> None:
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", OPERATIONS, flags=re.MULTILINE))

    assert documented == settings_read()


def chosen_for_postgresql(constant: str) -> list[Path]:
    """Return the paths that a constant of tools/test.py lists."""
    tool = (ROOT / "tools/test.py").read_text()
    reported = re.search(rf"^{constant} = (\(.*?^\))", tool, re.MULTILINE | re.DOTALL)
    assert reported is not None
    return [ROOT / path for path in ast.literal_eval(reported[1])]


def test_what_a_database_can_change_is_tested_on_both() -> None:
    chosen = chosen_for_postgresql("ON_POSTGRES")
    left_out = [name.partition("::") for name in SENT_BY_OTHERS.read_text().split()]
    asking = {
        path
        for path in (ROOT / "tests").rglob("test_*.py")
        if path != Path(__file__)
        if ASKS_SQL.search(path.read_text()) and not IN_A_BROWSER.search(path.read_text())
    }

    assert [named(path) for path in chosen if not path.exists()] == []
    assert [named(p) for p in asking if not any(p.is_relative_to(each) for each in chosen)] == []
    for path, _, name in left_out:
        text = (ROOT / path).read_text()
        body = text.partition(f"def {name}(")[2].partition("\n\n\n")[0] if name else text
        assert not ASKS_SQL.search(body), f"{path}::{name}"


# Versions and locks


def test_the_version_is_the_newest_of_the_changelog() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (\d+\.\d+\.\d+)\b", changes, re.MULTILINE)

    assert versions[0] == VERSION


def test_a_lock_has_hashes_and_no_address() -> None:
    for path in LOCKS:
        text = path.read_text()
        assert "://" not in text, path.name
        assert "--index" not in text, path.name
        assert text.count("--hash=sha256:") >= len(PINNED.findall(text)) > 0, path.name


def test_a_lock_holds_all_that_was_asked_for() -> None:
    for path in LOCKS:
        asked = re.findall(r"^\w[\w-]*", path.with_suffix(".in").read_text(), re.MULTILINE)
        locked = re.findall(r"^[\w-]+(?===)", path.read_text(), re.MULTILINE)
        assert set(asked) - set(locked) == set(), path.name


def test_what_runs_and_what_is_tested_are_the_same_versions() -> None:
    base, dev = (
        set(PINNED.findall((ROOT / f"requirements/{name}.txt").read_text()))
        for name in ("base", "dev")
    )

    assert base - dev == set()


def test_the_front_end_lock_has_hashes_and_no_address() -> None:
    text = (ROOT / "package-lock.json").read_text()
    packages = [package for name, package in json.loads(text)["packages"].items() if name]

    assert "resolved" not in text
    assert "://" not in text
    assert all(package["integrity"].startswith("sha512-") for package in packages)


def test_rules_are_listed_in_their_table_alone() -> None:
    lists = [
        f"{named(path)}:{node.lineno}"
        for path in SOURCES
        if path.is_relative_to(ROOT / "fleet")
        and path.relative_to(ROOT / "fleet").parts[0] in ASKS_TRAITS
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Tuple | ast.Set | ast.List)
        and len(names := [each.value for each in node.elts if isinstance(each, ast.Constant)]) > 1
        and set(names) <= RULES.keys()
    ]
    assert lists == [], "ask a trait of `Rule` in telemetry/detect/rules.py"
