"""`manage.py drill`: a scenario through detection and alerts, hours of it in seconds."""

from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser

from drills.report import drill, lines
from drills.scenario import Scenario, load_scenario
from fleet.management.cli import PlainCommand
from telemetry.simulate.inputs import TIERS


class Command(PlainCommand):
    help = "Play a scenario file through detection and alerts, and score them against the truth."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("scenario", type=Path, help="scenario file (TOML); see docs/drills.md")
        parser.add_argument("--seed", type=int, help="another seed than the file's")
        parser.add_argument("--tier", help=f"input tier: {', '.join(TIERS)}; else the file's")

    def handle(
        self,
        *,
        scenario: Path,
        seed: int | None,
        tier: str | None,
        json: bool,
        **_: Any,
    ) -> None:
        played = read_scenario(scenario)
        played = played if tier is None else played.at_tier(tier)
        report = drill(played, seed=seed)
        if json:
            self.write_json(report.as_json())
            return
        for line in lines(report):
            self.stdout.write(line)


def read_scenario(path: Path) -> Scenario:
    """Read a scenario file; ValueError explains what is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        msg = f"scenario: cannot read {path} ({error.strerror}); give the path of a TOML file"
        raise ValueError(msg) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"scenario: {path} is not UTF-8 text; give a TOML file") from error
    return load_scenario(text, folder=path.parent)
