"""Runbooks: the sections of their files, with the names of an alert filled in."""

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from textwrap import dedent

from django.conf import settings
from django.urls import reverse

from fleet.alerts.evidence import Evidence
from fleet.alerts.record import STEP_NOISE_RATIO, recorded
from fleet.models import Alert
from telemetry.detect import RULES
from telemetry.detect.causes import rule_of

# The folders whose documents are pages, with the name of their address.
PAGES = {"docs": "document", "docs/runbooks": "runbook"}
# Code, which is left alone, or a link or image: its text and its target.
LINK = re.compile(r"```.*?```|`[^`]*`|!?\[([^\[\]]+)\]\(([^()\s]+)\)", re.DOTALL)
NOW, FIRST = "## Do now", "## Check first"
# Where the commands of a block are run. Blocks of other schedulers than the alert's are left out.
PLACES = {"slurm": "Slurm", "kubernetes": "Kubernetes", "shell": "On the node"}
SCHEDULERS = ("slurm", "kubernetes")
# Labels that show which scheduler a node or a job has.
LABELS_OF = {
    "slurm": ("slurm_job_id", "slurm_partition"),
    "kubernetes": ("kubernetes_node", "pod", "namespace"),
}
BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```(?:\n|\Z)", re.MULTILINE | re.DOTALL)
# Neither an option nor anything that a shell reads in another way.
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
FIELD = re.compile(r"\{([a-z_]+)\}")
QUOTED = re.compile(r"`\{([a-z_]+)\}`")
# What follows the first step of a list.
NEXT_STEP = re.compile(r"\n+(?=\d+\. |\*\*)")


@lru_cache(maxsize=64)
def document(path: str) -> str:
    """Return a document as Markdown whose links lead to pages; empty where there is none.

    A link to what has no page, such as code, becomes plain text.
    """
    file = Path(settings.ROOT) / path

    def linked(link: re.Match[str]) -> str:
        text, target = link.groups()
        if not target or "://" in target:
            return link[0]
        name, mark, fragment = target.partition("#")
        there = posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) if name else path
        address = page_of(there)
        return f"[{text}]({address}{mark}{fragment})" if address else text

    return LINK.sub(linked, file.read_text()) if file.is_file() else ""


def page_of(path: str) -> str:
    """Return the address of a document's page; empty where it has none."""
    file, view = PurePosixPath(path), PAGES.get(posixpath.dirname(path))
    has_page = view and file.suffix == ".md" and (Path(settings.ROOT) / file).is_file()
    return reverse(view, args=[file.stem]) if has_page else ""


def section(rule: str, title: str) -> str:
    """Return a section of a rule's runbook as Markdown; empty where there is none."""
    text = document(RULES[rule].runbook) if rule in RULES else ""
    return text.partition(f"{title}\n")[2].partition("\n## ")[0].strip()


def steps_now(alert: Alert, *, base_url: str = "") -> str:
    """Return the steps of an alert's runbook for its case, with its names filled in, as Markdown.

    The cause chooses the runbook: an all-reduce share because of a slow core has that of the slow
    core. Commands are those of the run's scheduler, else of its node's, and of none where labels
    do not show which one it is. A command whose names are not all known is left out. Links begin
    with ``base_url``.
    """
    rule = runbook_of(alert)
    titles = [*(f"{NOW}: {case}" for case in cases_of(alert)), NOW]
    found_in = ((each, title) for each in (rule, alert.rule) for title in titles)
    steps = for_alert(next(filter(None, (section(*each) for each in found_in)), ""), alert)
    return steps.replace("](/", f"]({base_url}/")


@dataclass(frozen=True, slots=True)
class FirstStep:
    """The first step of a runbook: what to do, as plain text; why, its commands and what follows.

    All but ``act`` are Markdown.
    """

    act: str
    why: str = ""
    commands: str = ""
    rest: str = ""


def first_step(alert: Alert) -> FirstStep:
    """Read the first step for an alert; empty without any."""
    first, _, rest = NEXT_STEP.sub("\0", steps_now(alert), count=1).partition("\0")
    sentences, _, commands = first.removeprefix("1. ").partition("\n\n")
    act, _, why = sentences.partition(". ")
    return FirstStep(act.removesuffix(".").replace("`", ""), why, dedent(commands), rest)


def runbook_of(alert: Alert) -> str:
    """Name the rule whose runbook an alert has: the cause's own, where its node is known."""
    return (rule_of(alert.cause) if alert.node else None) or alert.rule


def checks_first(alert: Alert) -> str:
    """Return what the runbook of an alert's rule says to check first, as `steps_now`."""
    return for_alert(section(alert.rule, FIRST), alert)


def for_alert(text: str, alert: Alert) -> str:
    """Fill in the names of an alert, and leave out commands that do not apply to it."""
    node, run = alert.node, alert.run
    labels = {**(run.labels if run else {}), **(node.labels if node else {})}
    scheduler = scheduler_of(run.labels if run else {}) or scheduler_of(labels)
    left_out = set(SCHEDULERS) - {scheduler}
    text = BLOCK.sub(lambda match: "" if match[1] in left_out else match[0], text)
    values = {**labels, "alert": str(alert.pk)}
    if run:
        values["run"] = run.name
    if node:
        values["node"] = node.name
        values.setdefault("kubernetes_node", node.name)
    return filled(without_unknown(text, values), values)


def cases_of(alert: Alert) -> list[str]:
    """List what is known of an alert, as the sections of runbooks are called, most exact first."""
    evidence = Evidence(recorded(alert).alert.evidence)
    kind, where = str(evidence.figures.get("kind") or ""), []
    if not alert.nodes or len(alert.nodes) > 1 or len(alert.runs) > 1:
        where = ["several nodes" if alert.nodes or len(alert.runs) > 1 else "no node"]
    step_s, usual_s = evidence.number("step_s"), evidence.number("baseline_step_s")
    is_as_before = step_s and usual_s and step_s <= usual_s * (1 + STEP_NOISE_RATIO)
    as_before = ["steps as before"] if is_as_before else []
    idle = [] if alert.runs else ["no run"]
    return [alert.cause, *(f"{kind}, {each}" for each in where), *where, *as_before, *idle, kind]


def scheduler_of(labels: Mapping[str, str]) -> str | None:
    """Return the only scheduler that labels show; None for none, or several."""
    names = [name for name in SCHEDULERS if any(label in labels for label in LABELS_OF[name])]
    return names[0] if len(names) == 1 else None


def without_unknown(text: str, values: Mapping[str, str]) -> str:
    """Leave out the commands whose fields are not all known; in sentences, name their kind.

    >>> without_unknown("On `{node}`", {})
    'On the node'
    """

    def commands(block: re.Match[str]) -> str:
        first, *lines, last = block[0].splitlines(keepends=True)
        known = [
            line
            for line in lines
            if all(_name_only(values.get(name, "")) for name in FIELD.findall(line))
        ]
        return "".join([first, *known, last]) if known else ""

    def name(field: re.Match[str]) -> str:
        return field[0] if values.get(field[1]) else f"the {field[1].replace('_', ' ')}"

    return QUOTED.sub(name, BLOCK.sub(commands, text))


def filled(text: str, values: Mapping[str, str]) -> str:
    """Fill the fields of a runbook, such as ``{node}``; unknown ones become their name: NODE.

    A label may be any text: in a block, one that the shell or a program would take for more than
    a name counts as unknown.

    >>> filled("drain `{node}`, {pod}", {"node": "trn-a"})
    'drain `trn-a`, POD'
    """

    def fill(text: str, quote: Callable[[str], str]) -> str:
        return FIELD.sub(lambda field: quote(values.get(field[1], "")) or field[1].upper(), text)

    parts, end = [], 0
    for block in BLOCK.finditer(text):
        parts += [fill(text[end : block.start()], _plain), fill(block[0], _name_only)]
        end = block.end()
    return "".join([*parts, fill(text[end:], _plain)])


def _plain(value: str) -> str:
    # It stands between backticks, which end at another one.
    return value.replace("`", "'").replace("\n", " ")


def _name_only(value: str) -> str:
    return value if SAFE.fullmatch(value) else ""
