"""Base of all commands: JSON or a table on stdout, bad input on stderr with exit code 2."""

import json
from collections.abc import Callable, Iterable, Mapping
from math import isfinite
from typing import Any

import msgspec
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DatabaseError

from fleet.ops.outages import database_advice, is_outage
from telemetry.catalog import Model, models
from telemetry.errors import FieldError

BAD_INPUT = 2


class PlainCommand(BaseCommand):
    """A command that prints text, or with ``--json`` one object; without system checks.

    A ValueError (such as FieldError) becomes one line on stderr and exit code 2.
    """

    requires_system_checks: list[str] = []

    def create_parser(self, prog_name: str, subcommand: str, **options: Any) -> CommandParser:
        parser = super().create_parser(prog_name, subcommand, **options)
        parser.add_argument(
            "--json", action="store_true", help="print one JSON object instead of a table"
        )
        return parser

    def execute(self, *args: Any, **options: Any) -> str | None:
        try:
            return super().execute(*args, **options)
        except ValueError as error:
            raise CommandError(str(error), returncode=BAD_INPUT) from error
        except DatabaseError as error:
            if is_outage(error):
                raise CommandError(database_advice(error)) from error
            raise CommandError(f"The database: {error}. Has `migrate` been run?") from error

    def write_json(self, answer: Mapping[str, object]) -> None:
        """Print one JSON object; unknown values are null, never NaN."""
        self.stdout.write(json.dumps(answer, allow_nan=False))

    def write_table(self, rows: Iterable[tuple[str, str, str]]) -> None:
        """Print rows of name, value and remark in columns, values to the right."""
        rows = list(rows)
        names = max(len(name) for name, _, _ in rows)
        values = max(len(value) for _, value, _ in rows)
        for name, value, remark in rows:
            self.stdout.write(f"  {name:<{names}}  {value:>{values}}  {remark}".rstrip())


MODEL_FLAGS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "params_b": (float, "parameters, in billions"),
    "layers": (int, "transformer layers"),
    "hidden": (int, "width of the hidden state"),
    "heads": (int, "attention heads"),
    "kv_heads": (int, "key and value heads (as many as heads)"),
    "ffn": (int, "width of the feed-forward block"),
    "vocab": (int, "vocabulary size"),
}
MOST = 100_000_000
OPTIONAL = {"kv_heads"}


def described_model(name: str, given: Mapping[str, Any]) -> Model | None:
    """Return the model that the options describe; None without such options.

    Missing values come from the catalog if it has the name; else FieldError names the missing
    options.
    """
    if not given:
        return None
    _check(given)
    known = models().get(name)
    shape = msgspec.to_builtins(known) if known else {"kind": _kind(name)}
    lacking = [flag for flag in MODEL_FLAGS if flag not in given and flag not in OPTIONAL]
    if known is None and lacking:
        flags = ", ".join(f"--{flag.replace('_', '-')}" for flag in lacking)
        missing = f"{name!r} is not in the catalog; describe it: {flags} missing"
        raise FieldError("model", missing)
    shape |= {flag: value for flag, value in given.items() if flag != "params_b"}
    if "params_b" in given:
        shape["params"] = given["params_b"] * 1e9
    shape.setdefault("kv_heads", shape["heads"])
    shape |= {"name": name, "source": "as given", "date": "as given"}
    model = msgspec.convert(shape, Model)
    if model.hidden % model.heads:
        raise FieldError("heads", f"{model.heads} must divide hidden {model.hidden}")
    if model.heads % model.kv_heads:
        raise FieldError("kv_heads", f"{model.kv_heads} must divide heads {model.heads}")
    return model


def _kind(name: str) -> str:
    if "bert" in name.lower():
        return "encoder"
    return "vision" if "vit" in name.lower().split("-") else "decoder"


def _check(given: Mapping[str, Any]) -> None:
    for flag, value in given.items():
        if not isfinite(value) or not 0 < value <= MOST:
            raise FieldError(flag, f"{value!r} is out of range; give above 0, up to {MOST:,}")
