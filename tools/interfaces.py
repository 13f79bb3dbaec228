"""Print every interface that others rely on, as JSON: compare it before and after a change.

Run `python tools/interfaces.py > before.json`, the same after, then `diff before.json after.json`.
It lists addresses with who may open them, the API with its schemas, commands with their options,
settings, series with their labels, live topics and Celery tasks.
"""

import gc
import importlib
import json
import os
import pkgutil
import re
import sys
import tempfile
from argparse import Action
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
PRODUCT = ("drills", "fleet", "importers", "telemetry", "trnwatch")
ROLES = ("anonymous", "viewer", "operator", "lead", "admin")
EXAMPLES = {"int": "999999", "str": "x", "slug": "x", "path": "x"}


def modules() -> None:
    """Import the whole product, so that everything that it defines exists."""
    for name in PRODUCT:
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            if ".migrations" in found.name or found.name.endswith("__main__"):
                continue
            try:
                importlib.import_module(found.name)
            except ImportError as error:
                if error.name and error.name.split(".")[0] in PRODUCT:
                    raise


def patterns() -> list[tuple[str, str]]:
    """Return every address below the root, with its name."""
    from django.urls import URLPattern, get_resolver

    def below(resolver: Any, prefix: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for entry in resolver.url_patterns:
            route = prefix + str(entry.pattern)
            if isinstance(entry, URLPattern):
                found.append((route, entry.name or ""))
            else:
                found += below(entry, route)
        return found

    return below(get_resolver(), "")


def addresses() -> dict[str, Any]:
    """Return what each address answers to each role, for reading and for changing."""
    from django.contrib.auth.models import Group, User
    from django.test import Client

    clients = {"anonymous": Client(raise_request_exception=False)}
    for role in ROLES[1:]:
        user = User.objects.create_user(role)
        user.groups.add(Group.objects.get(name=role))
        client = clients[role] = Client(raise_request_exception=False)
        client.force_login(user)
    found: dict[str, Any] = {}
    for route, name in sorted(set(patterns())):
        path = "/" + re.sub(r"<(?:(\w+):)?\w+>", lambda m: EXAMPLES.get(m[1] or "str", "x"), route)
        if name in {"live", "sign-out"}:
            found[route] = {"name": name}
            continue
        answers = {
            method: {role: answer(client, method, path) for role, client in clients.items()}
            for method in ("get", "post")
        }
        found[route] = {"name": name, **answers}
    return found


def answer(client: Any, method: str, path: str) -> str:
    """Return how a request is answered: refused without the role, or allowed."""
    status = getattr(client, method)(path).status_code
    return {302: "sign in", 401: "refused", 403: "refused", 405: "no such method"}.get(
        status, "let in"
    )


def commands() -> dict[str, Any]:
    """Return every command of ours with its options."""
    from django.core.management import get_commands, load_command_class

    found = {}
    for name, app in get_commands().items():
        if app in {"drills", "fleet", "importers", "telemetry.store"}:
            parser = load_command_class(app, name).create_parser("manage.py", name)
            found[name] = sorted(filter(None, map(option, parser._actions)))
    return found


def option(action: Action) -> str:
    """Return one option as it is written, with its choices."""
    choices = f" {sorted(map(str, action.choices))}" if action.choices else ""
    usual = {"--help", "--version", "--verbosity", "--settings", "--pythonpath", "--traceback"}
    usual |= {"--no-color", "--force-color", "--skip-checks"}
    if usual & set(action.option_strings):
        return ""
    return "/".join(action.option_strings or [action.dest]) + choices


def series() -> dict[str, Any]:
    """Return every series with its kind and labels."""
    from telemetry.exporter.exposition import Spec

    specs = [held for held in gc.get_objects() if type(held) is Spec]
    return {spec.name: [spec.kind, *spec.labels] for spec in specs}


def environment() -> list[str]:
    """Return the names of all settings that the environment gives."""
    named = re.compile(r"\b(?:TRNWATCH|DATABASE|REDIS|EMAIL)_[A-Z_]*[A-Z]\b")
    files = [path for name in PRODUCT for path in (ROOT / name).rglob("*.py")]
    return sorted({name for path in files for name in named.findall(path.read_text())})


def main() -> None:
    """Set Django up on an empty database, and print everything."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "fleet.settings",
            "TRNWATCH_DATA_DIR": folder,
            "DATABASE_URL": "sqlite://:memory:",
            "REDIS_URL": "redis://127.0.0.1:1/0",
            "TRNWATCH_DEMO": "0",
        }
        import django

        django.setup()
        from django.conf import settings
        from django.core.management import call_command

        settings.ALLOWED_HOSTS = ["*"]
        settings.STORAGES["staticfiles"] = {
            "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        }
        call_command("migrate", verbosity=0)
        modules()
        from fleet.celery import app
        from fleet.pages.topics import TOPICS

        listed = {
            "addresses": addresses(),
            "api": openapi(),
            "commands": commands(),
            "environment": environment(),
            "series": series(),
            "topics": sorted(TOPICS),
            "tasks": sorted(name for name in app.tasks if name.split(".")[0] in PRODUCT),
        }
        json.dump(listed, sys.stdout, indent=1, sort_keys=True, default=str)


def openapi() -> Any:
    """Return the description of the API, whole."""
    from django.contrib.auth.models import User
    from django.test import Client

    client = Client()
    client.force_login(User.objects.get(username="admin"))
    return client.get("/api/v1/openapi.json").json()


if __name__ == "__main__":
    main()
