"""Every rule has a section, a runbook, and an explanation of each figure of its evidence."""

import re
from pathlib import Path

import numpy as np
import pytest

from telemetry.blocks import Span
from telemetry.detect import RULES, Finding, find, find_silent
from telemetry.detect.rules import Rule
from telemetry.simulate.faults import FAULTS
from tests.telemetry.detect.runs import inputs, steps_at

ROOT = Path(__file__).resolve().parents[3]
RULES_PAGE = (ROOT / "docs/rules.md").read_text()
HEADINGS = ("## Check first", "## When to escalate")


def section(rule: str) -> str:
    _, heading, text = RULES_PAGE.partition(f"\n## {rule}\n")
    assert heading, f"docs/rules.md: add the heading '## {rule}'"
    return text.partition("\n## ")[0]


def one_of_each() -> list[Finding]:
    counts = np.zeros((2, 1, 2))
    counts[1, 0, 1] = 3
    states = {"mem_ecc_uncorrected": counts, "device_unhealthy": np.minimum(counts, 1)}
    ecc = Span("s", np.array([0, 600]), ("steady",), states)
    return [
        *find(inputs(steps_at([0.1] * 9 + [0.3] * 3), counts=ecc)),
        *find_silent({"steady": 0, "calm": 99}, now_s=100),
        *find_silent({"steady": 0, "calm": 0}, now_s=100),
    ]


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_its_section_and_its_runbook(rule: str) -> None:
    assert section(rule).strip()
    path = ROOT / RULES[rule].runbook
    assert path.exists(), f"add {RULES[rule].runbook}"
    runbook, title = path.read_text(), f"# {rule}: {RULES[rule].title.lower()}"
    assert runbook.lower().startswith(f"{title}\n"), f"first line of {path.name}: {title}"
    assert [each for each in HEADINGS if each not in runbook] == [], f"headings of {path.name}"


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_a_rule_says_what_it_needs(rule: Rule) -> None:
    assert rule.needs, f"telemetry/detect/rules.py, {rule.name}: add needs"
    # It follows "Needs", and a full stop comes after it.
    assert not rule.needs.endswith(".")


def test_no_rule_is_broken_that_does_not_exist() -> None:
    assert {finding.rule for finding in one_of_each()} <= set(RULES)


@pytest.mark.parametrize("finding", one_of_each(), ids=lambda finding: finding.rule)
def test_every_figure_of_the_evidence_is_explained(finding: Finding) -> None:
    explained = set(re.findall(r"`(\w+)`", section(finding.rule)))
    assert set(finding.evidence) - explained == set(), f"docs/rules.md, ## {finding.rule}"


def test_every_cause_that_is_named_is_a_kind_of_fault() -> None:
    table = re.findall(r"^\| `(\w+)` \| (?:yes|no) \|", section("allreduce_share"), re.MULTILINE)
    assert set(table) - {"unknown"} <= set(FAULTS)


def test_no_page_is_of_a_rule_that_does_not_exist() -> None:
    pages = {path.stem for path in (ROOT / "docs/runbooks").glob("*.md")}
    assert pages - {"input-tiers", "notifications", "service"} <= set(RULES)
    assert set(re.findall(r"^## (\w+)$", RULES_PAGE, re.MULTILINE)) <= set(RULES)
