"""Operators of a model against what is published and what the compiler reported."""

from telemetry.support.errors import SupportError
from telemetry.support.judging import Basis, Judgement, State, judge
from telemetry.support.published import Published, published
from telemetry.support.reading import read_operators
from telemetry.support.records import Form, Operator, Reading, Report

__all__ = [
    "Basis",
    "Form",
    "Judgement",
    "Operator",
    "Published",
    "Reading",
    "Report",
    "State",
    "SupportError",
    "judge",
    "published",
    "read_operators",
]
