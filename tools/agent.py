"""Make the agent, one file: `python3 tools/agent.py [FILE]`; standard library only."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from telemetry.node_files import agent_file  # noqa: E402

if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/trnwatch-agent.pyz"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(agent_file())
    target.chmod(0o755)
    print(target)
