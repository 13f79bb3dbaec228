"""Development mode: changed Python restarts processes; templates and CSS are read again."""

import asyncio
from pathlib import Path

from fleet.ops.services import changed_files
from tests.fleet.ops.installation import environment, run_text

# Renders one template and serves one style sheet, changes both, and does so again.
RENDERS_TWICE = """
import django
from pathlib import Path
django.setup()
from django.conf import settings
from django.template.loader import render_to_string
from django.test import Client
here = Path(settings.DATA_DIR)
PAGE = "{% load partials %}{% partialdef part inline %}TEXT{% endpartialdef %}"
for text in ("first", "second"):
    (here / "page.html").write_text(PAGE.replace("TEXT", text))
    (here / "page.css").write_text("/* " + text + " */")
    css = Client().get("/static/page.css").content.decode()
    print(render_to_string("page.html"), render_to_string("page.html#part"), css)
"""
SETTINGS = """
from fleet.settings import *
TEMPLATES[0]["DIRS"].append(DATA_DIR)
STATICFILES_DIRS.append(DATA_DIR)
"""


def test_a_changed_source_file_is_noticed_and_no_other(tmp_path: Path) -> None:
    code = tmp_path / "fleet" / "module.py"
    page = tmp_path / "fleet" / "page.html"
    code.parent.mkdir()
    (tmp_path / "telemetry").mkdir()

    async def changes() -> list[list[Path]]:
        seen = []
        code.write_text("a = 1")
        watching = changed_files(tmp_path, poll_s=0.01)
        waiting = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)
        for number in range(3):
            # Written again until it is seen: the first look may come after the first change.
            while not waiting.done():
                page.write_text(f"{number}")
                code.write_text("a = 1" * (number + 2))
                await asyncio.sleep(0.02)
            seen.append(waiting.result())
            waiting = asyncio.ensure_future(anext(watching))
        waiting.cancel()
        return seen

    assert asyncio.run(changes()) == [[Path("fleet/module.py")]] * 3


def shown_twice(folder: Path, **env: str) -> list[str]:
    (folder / "watched_settings.py").write_text(SETTINGS)
    settings = {
        "DJANGO_SETTINGS_MODULE": "watched_settings",
        "TRNWATCH_ALLOWED_HOSTS": "testserver",
    }
    text = f"import sys; sys.path.insert(0, {str(folder)!r})\n{RENDERS_TWICE}"
    return run_text(text, env=environment(folder, **settings, **env)).splitlines()


def test_templates_and_style_sheets_are_read_again_while_developing(tmp_path: Path) -> None:
    shown = shown_twice(tmp_path, TRNWATCH_DEBUG="1")

    assert shown == [f"{text} {text} /* {text} */" for text in ("first", "second")]


def test_templates_are_read_once_in_production(tmp_path: Path) -> None:
    shown = shown_twice(tmp_path)

    assert [line.split()[0] for line in shown] == ["first", "first"]
