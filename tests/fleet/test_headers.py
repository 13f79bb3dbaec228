"""Security headers, in development and production."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

ROOT = Path(__file__).parents[2]


@pytest.fixture
def policy(client: Client, db: None) -> dict[str, str]:
    header = client.get("/sign-in/")["Content-Security-Policy"]
    return dict(part.strip().split(" ", 1) for part in header.split(";"))


def test_nothing_unsafe_is_allowed(policy: dict[str, str]) -> None:
    assert "unsafe" not in " ".join(policy.values())
    assert "*" not in " ".join(policy.values())


def test_everything_comes_from_here(policy: dict[str, str]) -> None:
    assert policy["default-src"] == "'none'"
    for directive in ("script-src", "style-src", "connect-src", "form-action", "base-uri"):
        assert policy[directive] == "'self'"
    assert policy["img-src"] == "'self' data:"
    assert policy["frame-ancestors"] == "'none'"


def test_pages_keep_to_it(client: Client, db: None) -> None:
    page = client.get("/sign-in/").text

    assert " style=" not in page
    assert "<style" not in page
    assert " onclick=" not in page
    assert page.count("<script") == page.count("<script src=") + page.count(
        '<script type="module" src='
    )


def test_the_security_headers_are_set(client: Client, db: None) -> None:
    response = client.get("/sign-in/")

    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["X-Frame-Options"] == "DENY"
    assert response["Referrer-Policy"] == "same-origin"
    assert response["Cross-Origin-Opener-Policy"] == "same-origin"


def test_cookies_are_kept_from_scripts_and_other_sites(
    client: Client, db: None, redis_url: str
) -> None:
    User.objects.create_user("ada", password="correct horse")
    client.post("/sign-in/", {"username": "ada", "password": "correct horse"})
    session = client.cookies["trnwatch_session"]

    assert session["httponly"]
    assert session["samesite"] == "Lax"


def checked(
    tmp_path: Path, *command: str, **environment: str
) -> "subprocess.CompletedProcess[str]":
    known = os.environ | {"TRNWATCH_DATA_DIR": str(tmp_path), "TRNWATCH_DEMO": ""}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=known | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_production_has_nothing_to_complain_about(tmp_path: Path) -> None:
    done = checked(
        tmp_path, "manage.py", "check", "--deploy", "--fail-level", "WARNING", TRNWATCH_TLS="1"
    )

    assert done.returncode == 0, done.stderr
    assert "no issues" in done.stdout


ASK = """
import django, json
django.setup()
from django.conf import settings as s
print(s.SESSION_COOKIE_SECURE, s.CSRF_COOKIE_SECURE, s.SECURE_SSL_REDIRECT, s.SECURE_HSTS_SECONDS)
"""


@pytest.mark.parametrize(
    ("tls", "shown"), [("1", "True True True 31536000"), ("", "False False False 0")]
)
def test_tls_locks_the_rest(tmp_path: Path, tls: str, shown: str) -> None:
    done = checked(tmp_path, "-c", ASK, TRNWATCH_TLS=tls, DJANGO_SETTINGS_MODULE="fleet.settings")

    assert done.stdout.strip() == shown, done.stderr
