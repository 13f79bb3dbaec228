"""`python -m telemetry.agent`."""

import sys

from telemetry.agent.program import main

sys.exit(main(sys.argv[1:]))
