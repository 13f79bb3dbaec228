"""The agent and the reporter's wheel, as the server hands them out."""

import re
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from django.test import Client
from pytest_django import Settings

Page = Callable[..., str]


@pytest.mark.usefixtures("db")
def test_the_agent_it_hands_out_runs(client: Client, settings: Settings, tmp_path: Path) -> None:
    settings.ANONYMOUS_READING = False
    path = tmp_path / "trnwatch-agent.pyz"
    path.write_bytes(client.get("/connect/trnwatch-agent.pyz").content)

    run = subprocess.run([sys.executable, path, "--help"], capture_output=True, check=True)

    assert b"--token-file" in run.stdout


@pytest.mark.usefixtures("db")
def test_the_wheel_it_hands_out_is_whole(client: Client, page: Page, tmp_path: Path) -> None:
    (name,) = set(re.findall(r"trnwatch-[\d.]+-py3-none-any\.whl", page("/connect/")))
    path = tmp_path / name
    path.write_bytes(client.get(f"/connect/{name}").content)

    with zipfile.ZipFile(path) as wheel:
        record = next(each for each in wheel.namelist() if each.endswith("/RECORD"))
        for line in wheel.read(record).decode().splitlines()[:-1]:
            member, digest, size = line.rsplit(",", 2)
            content = wheel.read(member)
            assert int(size) == len(content)
            assert digest == "sha256=" + urlsafe_b64encode(
                sha256(content).digest()
            ).decode().rstrip("=")
    script = (
        "import importlib.metadata as m, trnwatch;"
        "print(m.version('trnwatch'), trnwatch.Reporter, trnwatch.__file__)"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert name.split("-")[1] in run.stdout
    assert str(path) in run.stdout


@pytest.mark.usefixtures("db")
def test_other_files_are_not_handed_out(client: Client) -> None:
    assert client.get("/connect/settings.py").status_code == 404
