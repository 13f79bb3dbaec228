"""Runbooks: the sections of their files, with the names of an alert filled in."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from django.conf import settings

from fleet.models import Alert
from telemetry.detect import RULES
from telemetry.detect.causes import rule_of

NOW, FIRST = "## Do now", "## Check first"
# Where the commands of a block are run. Blocks of other schedulers than the alert's are left out.
PLACES = {"slurm": "Slurm", "kubernetes": "Kubernetes", "shell": "On the node"}
SCHEDULERS = ("slurm", "kubernetes")
# Labels that show which scheduler a node or a job has.
LABELS_OF = {
    "slurm": ("slurm_job_id", "slurm_partition"),
    "kubernetes": ("kubernetes_node", "pod", "namespace"),
}
BLOCK = re.compile(r"^ *```(\w+)\n(.*?)^ *```\n", re.MULTILINE | re.DOTALL)
# Neither an option nor anything that a shell reads in another way.
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*")
FIELD = re.compile(r"\{([a-z_]+)\}")


@lru_cache(maxsize=64)
def section(rule: str, title: str) -> str:
    """Return a section of a rule's runbook as Markdown; empty where there is none."""
    known = RULES.get(rule)
    path = Path(settings.ROOT) / known.runbook if known else None
    if path is None or not path.is_file():
        return ""
    _, _, rest = path.read_text().partition(f"{title}\n")
    return rest.partition("\n## ")[0].strip()


def steps_now(alert: Alert) -> str:
    """Return the steps of an alert's runbook with its names filled in, as Markdown.

    The cause chooses the runbook: an all-reduce share because of a slow core has that of the slow
    core. A cause, or an alert that names no node, may have steps of its own in the runbook of its
    rule. Commands of a scheduler
    that the alert's node and run do not have are left out, unless nothing shows which one they
    have.
    """
    node, run = alert.node, alert.run
    rule = (rule_of(alert.cause) if node else None) or alert.rule
    no_node = () if alert.nodes else (f"{NOW}: no node",)
    titles = (f"{NOW}: {alert.cause}", *no_node, NOW)
    found_in = ((each, title) for each in (rule, alert.rule) for title in titles)
    text = next(filter(None, (section(*each) for each in found_in)), "")
    labels = {**(run.labels if run else {}), **(node.labels if node else {})}
    found = [name for name in SCHEDULERS if any(label in labels for label in LABELS_OF[name])]
    left_out = set(SCHEDULERS) - set(found) if found else set()
    text = BLOCK.sub(lambda match: "" if match[1] in left_out else match[0], text)
    values = {**labels, "alert": str(alert.pk)}
    if run:
        values["run"] = run.name
    if node:
        values["node"] = node.name
        values.setdefault("kubernetes_node", node.name)
    return filled(text, values)


def filled(text: str, values: Mapping[str, str]) -> str:
    """Fill the fields of a runbook, such as ``{node}``; unknown ones become their name: NODE.

    A label may be any text: in a block, one that the shell or a program would take for more than
    a name counts as unknown.

    Examples
    --------
    >>> filled("drain `{node}`, {pod}", {"node": "trn-a"})
    'drain `trn-a`, POD'
    """

    def fill(text: str, quote: Callable[[str], str]) -> str:
        return FIELD.sub(
            lambda field: quote(values.get(field[1], "")) or field[1].upper(),
            text,
        )

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
