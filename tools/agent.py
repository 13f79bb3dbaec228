"""Make the one file that a node needs: `python3 tools/agent.py [FILE]`; standard library only."""

import sys
import tempfile
import zipapp
from pathlib import Path
from shutil import copy

ROOT = Path(__file__).resolve().parent.parent
AGENT = ROOT / "telemetry/agent"
MAIN = "import sys\nfrom telemetry.agent.program import main\nsys.exit(main(sys.argv[1:]))\n"


def build(target: Path) -> None:
    """Write the agent as one file that any Python from 3.9 on can run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        package = folder / "telemetry/agent"
        package.mkdir(parents=True)
        (folder / "__main__.py").write_text(MAIN)
        (package.parent / "__init__.py").touch()
        for path in sorted(AGENT.glob("*.py")):
            copy(path, package / path.name)
        target.parent.mkdir(parents=True, exist_ok=True)
        zipapp.create_archive(folder, target, "/usr/bin/env python3", compressed=True)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/trnwatch-agent.pyz"
    build(target)
    print(target)
