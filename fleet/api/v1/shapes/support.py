"""A support check as the API tells it: what stands, and every operator with why and what to do."""

from dataclasses import asdict
from datetime import datetime
from typing import Any, Self

from ninja import Field

from fleet.api.v1.fields import Told
from fleet.api.v1.paging import Links
from fleet.models import SupportCheck
from fleet.support.checking import judgements_of
from fleet.support.words import headline, rests_on, to_do, why
from telemetry.support import Judgement


class SupportCheckOut(Told):
    """One file of operators, judged; what is published later changes nothing here."""

    id: int = Field(description="Number of the check.", examples=[6])
    file: str = Field(description="Name of what was checked.", examples=["rl_module.fx.txt"])
    digest: str = Field(description="SHA-256 of it.")
    form: str = Field(description="fx, hlo, stablehlo, list or report.", examples=["list"])
    n_operators: int = Field(description="Different operators, not uses.")
    n_supported: int = Field(description="Of them, those that Trainium's compiler takes.")
    n_unsupported: int = Field(description="Those that it refuses.")
    n_unknown: int = Field(description="Those that nobody tells of: no promise either way.")
    headline: str = Field(description="What stands, in words.")
    checked_at: datetime = Field(description="When, UTC.")
    by: str = Field(description="Who checked.", examples=["ada"])
    trial: str | None = Field(description="What it was checked for.", examples=["bakeoff"])
    url: str = Field(description="Path of its page.", examples=["/support/6/"])

    @classmethod
    def told(cls, check: SupportCheck) -> dict[str, Any]:
        """Return what a check, asked for with its trial, tells."""
        return {
            **{name: getattr(check, name) for name in PLAIN},
            "headline": headline(check.n_operators, check.n_unsupported, check.n_unknown),
            "trial": check.trial.name if check.trial else None,
            "url": check.get_absolute_url(),
        }

    @classmethod
    def of(cls, check: SupportCheck) -> Self:
        """Tell a check."""
        return cls(**cls.told(check))


PLAIN = (
    *("id", "file", "digest", "form", "n_operators"),
    *("n_supported", "n_unsupported", "n_unknown", "checked_at", "by"),
)


class SupportCheckPage(Links):
    """A page of support checks."""

    items: list[SupportCheckOut] = Field(description="The checks of this page.")
    sorted_by: str = Field(default="-id", description="What was checked last comes first.")


class OperatorOut(Told):
    """One operator, judged."""

    name: str = Field(description="As the compiler calls it.", examples=["aten.sort"])
    written: str = Field(description="As it stands in the file.")
    n: int = Field(description="How often it is used.")
    line: int = Field(description="Where first, from 1.")
    state: str = Field(description="supported, unsupported or unknown.", examples=["unknown"])
    basis: str = Field(
        description="What that rests on: report, refused_type, refused, list, alias, target, "
        "lowering or none."
    )
    detail: str = Field(description="The listed operator, or the compiler's error code.")
    n_failed: int = Field(description="Uses that the compiler's report saw fail.")
    n_tried: int = Field(description="Uses that it tried.")
    is_listed: bool = Field(description="Whether the published list has it, whatever the state.")
    why: str = Field(description="What the judgement rests on, in words.")
    to_do: str = Field(description="What to do about it; empty: nothing.")

    @classmethod
    def of(cls, judged: Judgement) -> Self:
        """Tell an operator."""
        return cls(**asdict(judged), why=why(judged), to_do=to_do(judged))


class SupportReportOut(Told):
    """The compiler's own report that a check rests on."""

    file: str = Field(description="Its name.", examples=["result.json"])
    digest: str = Field(description="SHA-256 of it.")
    torch_neuronx: str | None = Field(description="Version of torch-neuronx, as it says.")
    neuronx_cc: str | None = Field(description="Version of the compiler, as it says.")


class SupportCheckDetail(SupportCheckOut):
    """A check with its operators."""

    n_listed: int = Field(description="Operators on the published list: it is no oracle.")
    list_date: str = Field(description="When that list was read.", examples=["2026-08-02"])
    report: SupportReportOut | None = Field(description="The compiler's report, if given.")
    rests_on: str = Field(description="What the judgements rest on, in words.")
    operators: list[OperatorOut] = Field(description="The worst first, then the most used.")

    @classmethod
    def of(cls, check: SupportCheck) -> Self:
        """Tell a check in full."""
        basis = check.basis
        report, n_listed, date = basis.get("report"), basis["n_listed"], basis["list_date"]
        return cls(
            **cls.told(check),
            n_listed=n_listed,
            list_date=date,
            report=SupportReportOut(**report) if report else None,
            rests_on=rests_on(n_listed, date, has_report=bool(report)),
            operators=[OperatorOut.of(each) for each in judgements_of(check)],
        )
