"""Shared parts of the set-up: commands, messages, and finished work."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
LOCKS = ROOT / "requirements"
# The first is without a window and needs little more than half of the CPU. Debian puts a script
# on the path which, when ended, leaves Chromium running.
CHROMIUMS = (
    "/usr/lib/chromium/chromium-headless-shell",
    "chromium",
    "chromium-browser",
)


def say(text: str) -> None:
    """Print one line at once."""
    print(text, flush=True)


def give_up(text: str) -> NoReturn:
    """Exit with a message and the remedy."""
    sys.exit(f"trnwatch cannot be set up: {text}")


def arguments_of(command: Iterable[object]) -> list[str]:
    """Return the arguments of a command as text."""
    return [str(argument) for argument in command]


def code(command: Iterable[object]) -> int:
    """Run a command; gives its exit code. What it says is shown only if it fails."""
    return code_of(start(command))


def start(command: Iterable[object]) -> subprocess.Popen[str]:
    """Start a command; `code_of` waits for it."""
    return subprocess.Popen(
        arguments_of(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def code_of(process: subprocess.Popen[str]) -> int:
    """Wait for a command; gives its exit code. What it says is shown only if it failed.

    Warnings of pip about its configuration, or what npm added, are no news where all went well.
    """
    words, _ = process.communicate()
    if process.returncode:
        say(words.rstrip())
    return process.returncode


def run(command: Iterable[object], *, why: str) -> None:
    """Run a command; if it fails, exit and name the purpose."""
    if exit_code := code(command):
        give_up(f"{why} failed (exit code {exit_code}); its words stand above.")


def works(command: Iterable[object]) -> bool:
    """Whether a command can be run at all."""
    try:
        done = subprocess.run(arguments_of(command), check=False, capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def output_of(command: Iterable[object]) -> str:
    """Return what a command prints; nothing if it cannot be run."""
    done = subprocess.run(arguments_of(command), check=False, capture_output=True, text=True)
    return done.stdout.strip()


# Stamps: a task is done when its stamp holds the hash of the current lock file.


def stamp(name: str) -> Path:
    """Return where it is noted what was installed."""
    return VENV / f"installed-{name}"


def digest_of(*names: str) -> str:
    """Sum up files."""
    return hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in names)).hexdigest()


def is_done(name: str, digest: str) -> bool:
    """Whether a thing was installed from these very files."""
    return stamp(name).exists() and stamp(name).read_text() == digest
