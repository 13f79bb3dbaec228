"""The Neuron analyzer's result.json: what the compiler tried, what passed, what failed.

Two tools write it: ``neuron_parallel_compile --command analyze`` for training, by kind of
operator (``aten``, and ``xla`` at its lower verbosity), and ``torch_neuronx.analyze`` for
inference, without kinds.

References
----------
aws-neuron-sdk, tutorials/training/analyze_for_training.rst and
api-reference-guide/inference/api-torch-neuronx-analyze.rst (2026-03).
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from telemetry.support.errors import SupportError, quoted
from telemetry.support.hlo import bare_opcode
from telemetry.support.names import hlo_name, operator_name
from telemetry.support.records import MOST_OPERATORS, Form, Operator, Reading, Report

SUPPORTED, UNSUPPORTED = "supported_operators", "unsupported_operators"
REMEDY = "give the analyzer's result.json as it was written"
OPERATOR = re.compile(r'"([A-Za-z_]\w{0,60}::\w{1,200})[".]', re.ASCII)
MOST_COUNT = 10**9
MOST_WHERE, LONGEST_WHERE, LONGEST_VERSION = 5, 200, 60


def read_report(text: str) -> Reading:
    """Read a report: its operators, how often, where they stand in the file, what was said.

    Raises
    ------
    SupportError
        Where it is no JSON, or not of this form; says the line or the field.
    """
    document = _document(text)
    if not {SUPPORTED, UNSUPPORTED} & document.keys():
        raise SupportError(f"it has neither {SUPPORTED} nor {UNSUPPORTED}; {REMEDY}")
    passed, failed = Counter[str](), Counter[str]()
    for name, n in _passed(document.get(SUPPORTED) or {}):
        passed[name] += n
    where: dict[str, list[str]] = {}
    for name, said in _failed(document.get(UNSUPPORTED) or []):
        failed[name] += 1
        where.setdefault(name, []).append(said)
    if len(passed | failed) > MOST_OPERATORS:
        raise SupportError(f"it has more than {MOST_OPERATORS:,} operators; {REMEDY}")
    report = Report(
        torch_neuronx=_version(document, "torch_neuronx_version"),
        neuronx_cc=_version(document, "neuronx_cc_version"),
        passed=dict(passed),
        failed=dict(failed),
        failures={name: _first(told) for name, told in where.items()},
    )
    return Reading(Form.REPORT, _operators(report, text), report)


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise SupportError(f"no JSON: {error.msg}; {REMEDY}", line=error.lineno) from error
    except (RecursionError, ValueError) as error:
        raise SupportError(f"no report: it is nested or counts beyond reason; {REMEDY}") from error
    if not isinstance(document, dict):
        raise SupportError(f"it is no object of JSON; {REMEDY}")
    return document


def _by_kind(section: Any, field: str) -> Iterator[tuple[str, str, Any]]:
    """Yield field, kind and entries of a section, which may have no kinds."""
    if isinstance(section, dict) and section.keys() <= {"aten", "xla"}:
        for kind, entries in section.items():
            yield f"{field}.{kind}", kind, entries
    else:
        yield field, "aten", section


def _passed(section: Any) -> Iterator[tuple[str, int]]:
    for field, kind, entries in _by_kind(section, SUPPORTED):
        if kind == "xla" and isinstance(entries, list):
            yield from ((_opcode(each, field), 1) for each in entries)
        elif isinstance(entries, dict):
            yield from (
                (_name(each, field), _count(n, f"{field}.{each}")) for each, n in entries.items()
            )
        elif entries:
            raise SupportError(f"{field} holds no operators with their counts; {REMEDY}")


def _failed(section: Any) -> Iterator[tuple[str, str]]:
    for field, kind, entries in _by_kind(section, UNSUPPORTED):
        if not isinstance(entries, list):
            raise SupportError(f"{field} is no list; {REMEDY}")
        for entry in entries:
            if not isinstance(entry, dict):
                raise SupportError(f"{field} holds {quoted(str(entry))}; {REMEDY}")
            yield _failure(entry, kind, field)


def _failure(entry: dict[str, Any], kind: str, field: str) -> tuple[str, str]:
    """Return what failed, and where in the script or in the compiler."""
    if kind == "xla":
        instruction = str(entry.get("hlo_instruction", ""))
        return _opcode(instruction, field), instruction[:LONGEST_WHERE]
    call = str(entry.get("call") or "").strip().splitlines()
    said = (str(entry.get("failureAt") or "").strip(), call[0].strip() if call else "")
    return _name(entry.get("kind"), field), ", ".join(filter(None, said))[:LONGEST_WHERE]


def _name(given: Any, field: str) -> str:
    name = operator_name(given) if isinstance(given, str) else ""
    if not name:
        raise SupportError(f"{field} holds {quoted(str(given))}, no operator; {REMEDY}")
    return name


def _opcode(given: Any, field: str) -> str:
    opcode = bare_opcode(given) if isinstance(given, str) else ""
    if not opcode:
        raise SupportError(f"{field} holds {quoted(str(given))}, no HLO instruction; {REMEDY}")
    return hlo_name(opcode)


def _count(given: Any, field: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 < given <= MOST_COUNT:
        raise SupportError(f"{field} is {quoted(str(given))}, no count; {REMEDY}")
    return given


def _version(document: dict[str, Any], field: str) -> str:
    given = document.get(field)
    text = given if isinstance(given, str) else ""
    return "".join(char for char in text if char.isprintable())[:LONGEST_VERSION]


def _first(told: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, told)))[:MOST_WHERE]


def _operators(report: Report, text: str) -> dict[str, Operator]:
    """Return the operators of PyTorch; the HLO instructions below them say why, not what."""
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        for found in OPERATOR.findall(line):
            lines.setdefault(operator_name(found), number)
    total = Counter(report.passed) + Counter(report.failed)
    names = [name for name in total if not name.startswith("hlo::")] or list(total)
    return {
        name: Operator(name, name, lines.get(name, 1), total[name])
        for name in sorted(names, key=lambda name: (lines.get(name, 1), name))
    }
