"""A supervisor of one program, for tests that kill it."""

import asyncio
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from fleet.ops.supervisor import Program, Supervisor  # noqa: E402

NAPS = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"


async def main(folder: Path) -> None:
    """Keep a napper for a minute."""
    supervised = Supervisor(folder, env=os.environ, cwd=ROOT, say=print)
    supervised.keep([Program("napper", (sys.executable, "-c", NAPS))])
    await asyncio.sleep(60)


asyncio.run(main(Path(sys.argv[1])))
