"""What the set-up prints: nothing of a command that went well, all of one that failed."""

import subprocess
import sys

import pytest

from bench.installation import ROOT


@pytest.mark.parametrize(("code", "shown"), [(0, ""), (3, "to stdout\nto stderr\n")])
def test_a_command_is_heard_only_if_it_fails(code: int, shown: str) -> None:
    child = (
        "import sys; print('to stdout', flush=True); "
        f"print('to stderr', file=sys.stderr); sys.exit({code})"
    )
    script = f"import common; assert common.code([{sys.executable!r}, '-c', {child!r}]) == {code}"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT / "tools",
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, shown, "")
