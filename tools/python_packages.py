"""The virtual environment and Python packages by lock file, with uv or pip."""

from __future__ import annotations

import sys
from pathlib import Path

from common import (
    LOCKS,
    PYTHON,
    VENV,
    code,
    digest_of,
    give_up,
    is_done,
    output_of,
    run,
    say,
    stamp,
    works,
)

UV = VENV / "bin" / "uv"
# What pip calls an index, and what uv does.
OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
}


def make_venv() -> bool:
    """Make the virtual environment, or a new one where its Python has gone."""
    if works([PYTHON, "-IS", "-c", ""]):
        return False
    say(f"Making .venv with Python {'.'.join(map(str, sys.version_info[:3]))} ...")
    run([sys.executable, "-m", "venv", "--clear", "--without-pip", VENV], why="making .venv")
    return True


def _pip() -> list[str | Path]:
    """Return the pip command that installs into .venv."""
    if works([sys.executable, "-m", "pip", "--python", PYTHON, "--version"]):
        return [sys.executable, "-m", "pip", "--python", PYTHON]
    if not works([PYTHON, "-m", "pip", "--version"]) and not works([PYTHON, "-m", "ensurepip"]):
        give_up(
            "this Python has neither pip nor ensurepip. On Debian and Ubuntu: "
            "apt install python3-pip python3-venv"
        )
    return [PYTHON, "-m", "pip"]


def have_uv() -> bool:
    """Have uv, which installs several times faster; gives whether that took anything."""
    digest = digest_of("requirements/uv.txt")
    if is_done("uv", digest):
        return False
    arguments = ["install", "--quiet", "--disable-pip-version-check", "--only-binary", ":all:"]
    if code([*_pip(), *arguments, "--require-hashes", "-r", LOCKS / "uv.txt"]):
        say("uv cannot be had here; pip does its work, more slowly.")
    stamp("uv").write_text(digest)
    return True


def install(goal: str) -> bool:
    """Install what the goal needs; gives whether there was anything to do."""
    wanted = {"run": "base", "dev": "dev"}[goal]
    digest = digest_of(f"requirements/{wanted}.txt")
    if is_done(wanted, digest):
        return False
    have_uv()
    say(f"Installing Python packages from requirements/{wanted}.txt ...")
    install_lock(f"{wanted}.txt")
    stamp(wanted).write_text(digest)
    if wanted == "dev":
        stamp("base").write_text(digest_of("requirements/base.txt"))
    return True


def install_lock(name: str) -> None:
    """Install a lock file: by uv, or by pip where uv is not to be had or fails."""
    if UV.exists():
        arguments = ["pip", "install", "--quiet", "--python", PYTHON, "--require-hashes"]
        if code([UV, *arguments, *_indexes(), "-r", LOCKS / name]) == 0:
            return
        say("uv could not install it; pip tries.")
    arguments = ["install", "--quiet", "--disable-pip-version-check", "--no-warn-script-location"]
    run([*_pip(), *arguments, "--require-hashes", "-r", LOCKS / name], why=f"installing {name}")


def lock(*, upgrade: bool, oldest: tuple[int, int]) -> None:
    """Write every lock file again, without the address of any index."""
    python = ".".join(map(str, oldest))
    options = ["--quiet", "--universal", "--python-version", python, "--generate-hashes"]
    options += ["--no-emit-index-url", "--no-emit-find-links"]
    options += ["--custom-compile-command", "make lock", *(["--upgrade"] if upgrade else [])]
    for name in ("uv", "node", "base", "dev"):
        say(f"Locking requirements/{name}.in ...")
        files = ["-o", f"requirements/{name}.txt", f"requirements/{name}.in"]
        run([UV, "pip", "compile", *options, *_indexes(), *files], why="locking")


def _indexes() -> list[str]:
    """Return uv's options for the package indexes that pip uses on this machine."""
    settings = [
        line.partition("=") for line in output_of([*_pip(), "config", "list"]).splitlines()
    ]
    # Authorities that pip trusts in addition are usually trusted by the machine too.
    options = ["--system-certs"] if any(key.endswith(".cert") for key, _, _ in settings) else []
    for key, _, value in settings:
        if option := OPTIONS.get(key.rpartition(".")[2]):
            for place in value.strip("'\"").split():
                options += [option, place]
    # The lock file's hashes decide what is installed, whichever index it comes from.
    return [*options, "--index-strategy", "unsafe-best-match"] if options else []
