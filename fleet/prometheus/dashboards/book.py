"""All dashboards, and the files they are kept in."""

import json
from collections.abc import Mapping

from fleet.prometheus.dashboards.fleet import FLEET
from fleet.prometheus.dashboards.grafana import Dashboard
from fleet.prometheus.dashboards.node import NODE
from fleet.prometheus.dashboards.run import RUN
from fleet.prometheus.rules import EXAMPLE_URL

DASHBOARDS: Mapping[str, Dashboard] = {"fleet": FLEET, "run": RUN, "node": NODE}


def dashboard_files(url: str = EXAMPLE_URL) -> dict[str, str]:
    """Write every dashboard: its file's name, and what stands in it."""
    return {
        f"trnwatch-{name}.json": json.dumps(board.as_json(url), indent=2) + "\n"
        for name, board in DASHBOARDS.items()
    }
