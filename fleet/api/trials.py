"""A trial as the API tells it."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal, Self

import msgspec
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Status

from fleet.api.alerts import LINE, NON_BLANK_LINE
from fleet.api.auth import caller, needs
from fleet.api.fields import (
    INTEGRAL_FLOAT,
    NAME,
    RequestSchema,
    ResponseSchema,
    Text,
    WholeNumber,
    conflict_on,
)
from fleet.api.paging import PageLinks, Paging, paginate
from fleet.models import Trial
from fleet.models.problem import ProblemError
from fleet.trials import services
from fleet.trials.figures import (
    ArmFigures,
    Candidate,
    Comparison,
    Match,
    MatchState,
    TrialFigures,
    load_figures,
)
from fleet.trials.measures import VendorClaim, claim_for
from fleet.trials.services import MOST_CANDIDATES, MOST_STEPS, MOST_TOKENS
from fleet.trials.text import sentence
from fleet.trials.verdict import ARMS_DIFFER, NO_VERDICT, Verdict, judge
from telemetry.statistics.verdicts import DEFAULT_STEPS

UNKNOWN = "null where nobody can tell"


class TrialArmOut(ResponseSchema):
    """One run of a trial."""

    label: str = Field(description="What it is called.", examples=["4 \u00d7 p5.48xlarge"])
    run: str = Field(description="Name of the run.", examples=["llama"])
    is_baseline: bool = Field(description="Whether the others are compared with it.")


class TrialOut(ResponseSchema):
    """One question, and the runs that answer it."""

    id: int = Field(description="Number of the trial.", examples=[2])
    name: str = Field(description="Unique name, also in addresses.", examples=["bakeoff"])
    question: str = Field(description="What is to be decided.")
    team: str = Field(description="Whose it is; empty where nobody says.")
    planned_steps: int = Field(description="Settled steps of each arm that decide.")
    planned_tokens: int | None = Field(
        description="Tokens of the whole training; null: its length is not asked for."
    )
    created_by: str = Field(description="Who began it.", examples=["ada"])
    created_at: datetime = Field(description="When it was begun, UTC.")
    ended_at: datetime | None = Field(description="When it was ended, UTC.")
    figured_at: datetime | None = Field(
        description="When its figures were worked out, UTC; null: not yet."
    )
    arms: list[TrialArmOut] = Field(description="Its runs, the baseline first.")
    url: str = Field(description="Path of its page.", examples=["/trials/bakeoff/"])

    @classmethod
    def values_of(cls, trial: Trial) -> dict[str, Any]:
        """Return what a trial, asked for with its arms, tells."""
        arms = [
            TrialArmOut(label=arm.label, run=arm.run.name, is_baseline=arm.is_baseline)
            for arm in trial.arms.all()
        ]
        plain = {name: getattr(trial, name) for name in SAME_FIELDS}
        return plain | {"arms": arms, "url": trial.get_absolute_url()}

    @classmethod
    def of(cls, trial: Trial) -> Self:
        return cls(**cls.values_of(trial))


SAME_FIELDS = (
    *("id", "name", "question", "team", "planned_steps", "planned_tokens"),
    *("created_by", "created_at", "ended_at", "figured_at"),
)


class TrialMatch(ResponseSchema):
    """A field that must be the same in all arms."""

    field: str = Field(description="Which field.", examples=["global_batch"])
    values: list[str] = Field(description="What each arm has, in the order of the arms.")
    state: MatchState = Field(description="same, differs, or not reported.")

    @classmethod
    def of(cls, match: Match) -> Self:
        return cls(field=match.field, values=list(match.values), state=match.state)


class TrialPrice(ResponseSchema):
    """What all nodes of an arm cost by the hour, from a moment on."""

    from_s: float = Field(description="Since when, Unix seconds.")
    usd_per_hour: float = Field(description="US dollars per hour.")
    basis: str = Field(description="By which terms.", examples=["on demand, 2026-07-20"])


class TrialArmFigures(TrialArmOut):
    """What an arm took, from its start to its newest step; null where nobody can tell."""

    instance_type: str = Field(description="On what.", examples=["trn2.48xlarge"])
    n_nodes: int = Field(description="Number of nodes.")
    n_steps: int = Field(description="Steps since training began.")
    n_settled: int = Field(description="Of them, those that count: warm-up is over.")
    n_warm_up: int = Field(description="Of them, those that do not.")
    tokens_per_step: float | None = Field(description="Tokens of the usual step.")
    compile_s: float | None = Field(description="Seconds in which anybody compiled.")
    ready_s: float | None = Field(description="Seconds from the run's start to its first step.")
    first_step_s: float | None = Field(description="Seconds of the first step.")
    warm_up_s: float = Field(description="Seconds of the steps that do not count.")
    usd_per_hour: float | None = Field(description="US dollars per hour of all its nodes.")
    usd_ready: float | None = Field(description="US dollars until the first step.")
    usd_warm_up: float | None = Field(description="US dollars of the warm-up.")
    usd_settled: float | None = Field(description="US dollars of the steps that count.")
    usd_between: float | None = Field(description="US dollars of pauses between steps.")
    usd: float | None = Field(description="US dollars of all that.")
    last_step: int = Field(description="Number of the newest step.")
    values: dict[str, float] = Field(description="Measures over the steps that count.")
    first_epoch_step_s: float | None = Field(
        description="Seconds of the mean step of its first pass over the data."
    )
    first_epoch_ratio: float | None = Field(description="How much of that pass is done, 0 to 1.")
    time_to_train_s: float | None = Field(
        description="Seconds from its start to the trial's planned tokens, at the settled pace."
    )
    n_tokens: float | None = Field(description="Tokens trained since training began.")
    n_lost: int = Field(description="Of its steps, those that were trained again after failures.")
    settled_s: float | None = Field(
        description="Seconds of the steps that count and tell their tokens."
    )
    settled_tokens: float | None = Field(description="Tokens of the steps that count.")
    price_basis: str = Field(description="Where its price comes from; empty without one.")
    is_simulated: bool = Field(
        description="Whether its pace follows from the simulator's assumed constants."
    )
    prices: list[TrialPrice] = Field(
        description="What it was paid by, oldest first; more than one where that changed."
    )


class TrialComparison(ResponseSchema):
    """One measure of a candidate beside the baseline."""

    measure: str = Field(description="Which measure.", examples=["usd_per_mtok"])
    baseline: float = Field(description="Of the baseline, in the unit its name ends with.")
    candidate: float = Field(description="Of the candidate.")
    ratio: float = Field(description="Candidate over baseline, less one.", examples=[-0.31])
    low: float | None = Field(description=f"Lower end of its 95 % interval; {UNKNOWN}.")
    high: float | None = Field(description=f"Upper end of its 95 % interval; {UNKNOWN}.")
    word: str = Field(
        description="better, worse, or cannot tell yet; of arms that train different things "
        "`none: arms differ`; of dollars paid on unlike terms `none: price kinds differ`.",
        examples=["better"],
    )
    n_more_steps: int | None = Field(
        description="About so many more steps of each arm would tell; null: none would."
    )


class TrialClaim(ResponseSchema):
    """What the vendor claims of tokens per dollar."""

    low: float = Field(description="Tokens per dollar over the baseline's, less one: at least.")
    high: float = Field(description="And at most.")
    words: str = Field(description="The claim in a sentence.")
    source: str = Field(description="Where it was made.")
    date: str = Field(description="When.", examples=["2024-12-03"])


class TrialListPrice(ResponseSchema):
    """What the catalogue lists for a node-hour of one kind."""

    low_usd: float = Field(description="US dollars; the lowest where several were seen.")
    high_usd: float = Field(description="The highest.")
    region: str = Field(description="Where.", examples=["us-east-1"])
    date: str = Field(description="When it was read.", examples=["2026-07-20"])


class TrialAtKind(ResponseSchema):
    """Dollars per token of both arms at list prices of one and the same kind."""

    kind: str = Field(
        description="on demand, 1-year, 3-year, reserved, capacity block, spot or contract.",
        examples=["capacity block"],
    )
    baseline: TrialListPrice = Field(description="The baseline's list price.")
    candidate: TrialListPrice = Field(description="The candidate's.")
    comparison: TrialComparison = Field(description="US dollars per million tokens at those.")


class TrialBreakEven(ResponseSchema):
    """The baseline's node-hour price above which the candidate is cheaper per token."""

    instance_type: str = Field(description="The baseline's.", examples=["p5.48xlarge"])
    usd: float = Field(description="US dollars per node and hour.", examples=[45.4])
    low: float | None = Field(description=f"Lower end of its 95 % interval; {UNKNOWN}.")
    high: float | None = Field(description=f"Upper end; {UNKNOWN}.")
    candidate_usd: float = Field(description="What the candidate's node-hour costs meanwhile.")
    is_paid: bool = Field(description="Whether that is what was paid; else its list price.")


class TrialPriceKinds(ResponseSchema):
    """On which terms the arms were paid, and what holds at equal terms."""

    baseline: str = Field(description="Kind of the baseline's price; empty: not stated.")
    candidate: str = Field(description="Kind of the candidate's.", examples=["capacity block"])
    is_alike: bool = Field(
        description="Whether they are one kind; else no word follows from dollars as paid."
    )
    at_equal: list[TrialAtKind] = Field(
        description="At each kind for which the catalogue lists a price of both."
    )
    break_even: TrialBreakEven | None = Field(description=f"The break-even price; {UNKNOWN}.")


class TrialCandidate(ResponseSchema):
    """One candidate against the baseline."""

    label: str = Field(description="What it is called.")
    run: str = Field(description="Name of its run.")
    sentence: str = Field(description="The verdict in words.")
    badge: str = Field(
        description="better, worse, cannot tell yet, arms differ, price kinds differ, or price "
        "unknown; empty before any figure.",
        examples=["price kinds differ"],
    )
    price_kinds: TrialPriceKinds = Field(description="At equal price kinds, and break-even.")
    comparisons: list[TrialComparison] = Field(description="Measure by measure.")
    equal_tokens: float | None = Field(description="Tokens after which losses are compared.")
    is_decided: bool = Field(description="The planned steps are done: its words stand.")
    claim: TrialClaim | None = Field(description="What the vendor claims of such a pair.")


class TrialDetail(TrialOut):
    """A trial with what it has shown; empty lists where that is not worked out yet."""

    matches: list[TrialMatch] = Field(description="What must be the same of all arms.")
    figures: list[TrialArmFigures] = Field(description="What each arm took.")
    candidates: list[TrialCandidate] = Field(description="Each against the baseline.")

    @classmethod
    def of(cls, trial: Trial) -> Self:
        figures = load_figures(trial.figures) or TrialFigures()
        arms = {arm.run: arm for arm in figures.arms}
        baseline = next((arm for arm in figures.arms if arm.is_baseline), None)
        return cls(
            **cls.values_of(trial),
            matches=[TrialMatch.of(match) for match in figures.matches],
            figures=[TrialArmFigures(**msgspec.to_builtins(arm)) for arm in figures.arms],
            candidates=[
                _candidate(figures, each, baseline, arms[each.run])
                for each in figures.candidates
                if baseline is not None
            ],
        )


def _candidate(
    figures: TrialFigures, candidate: Candidate, baseline: ArmFigures, arm: ArmFigures
) -> TrialCandidate:
    verdict = judge(figures, candidate)
    claim = claim_for(baseline.instance_type, arm.instance_type)
    return TrialCandidate(
        label=candidate.label,
        run=candidate.run,
        sentence=sentence(candidate, baseline.label, verdict),
        badge=verdict.badge,
        price_kinds=_price_kinds(verdict),
        equal_tokens=candidate.equal_tokens,
        is_decided=candidate.is_decided,
        comparisons=[
            _comparison(each, verdict.why_none(each.measure)) for each in candidate.comparisons
        ],
        claim=_claim(claim) if claim else None,
    )


def _claim(claim: VendorClaim) -> TrialClaim:
    return TrialClaim(
        low=claim.low, high=claim.high, words=claim.text, source=claim.source, date=claim.date
    )


def _comparison(found: Comparison, why: str) -> TrialComparison:
    """Tell a comparison, and where no verdict follows from it, why."""
    none = {"word": f"{NO_VERDICT}{why}", "n_more_steps": None} if why else {}
    return TrialComparison(**(msgspec.structs.asdict(found) | none))


def _price_kinds(verdict: Verdict) -> TrialPriceKinds:
    found, why = verdict.break_even, ARMS_DIFFER if verdict.differing else ""
    return TrialPriceKinds(
        baseline=verdict.kinds.baseline,
        candidate=verdict.kinds.candidate,
        is_alike=verdict.kinds.is_alike,
        at_equal=[
            TrialAtKind(
                kind=each.kind,
                baseline=TrialListPrice(**asdict(each.prices.baseline)),
                candidate=TrialListPrice(**asdict(each.prices.candidate)),
                comparison=_comparison(each.comparison, why),
            )
            for each in verdict.at_list_prices
        ],
        break_even=TrialBreakEven(**asdict(found)) if found else None,
    )


class TrialPage(PageLinks):
    """A page of trials."""

    items: list[TrialOut] = Field(description="The trials of this page.")
    sorted_by: str = Field(default="-id", description="What was begun last comes first.")


router = Router(tags=["trials"])
TrialName = Annotated[
    str, Field(pattern=NAME, description="Name of a trial.", examples=["bakeoff"])
]
ArmName = Annotated[str, Field(pattern=NAME)]


class TrialFilter(Paging):
    """Which trials to list."""

    state: Literal["", "open", "over"] = Field("", description="Whether they go on.")
    team: Text = Field("", description="Whose they are, exactly.", examples=["vision"])


class TrialIn(RequestSchema):
    """What trial to begin."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_-]{1,60}$", description="Unique name.", examples=["move"]
    )
    question: str = Field(
        max_length=services.MAX_QUESTION,
        pattern=NON_BLANK_LINE,
        description="What is to be decided.",
        examples=["Do we move to trn2?"],
    )
    team: str = Field("", max_length=services.MAX_TEAM, pattern=LINE, description="Whose it is.")
    baseline: ArmName = Field(
        description="Run that the others are compared with.", examples=["llama"]
    )
    candidates: list[ArmName] = Field(
        min_length=1,
        max_length=MOST_CANDIDATES,
        description="Runs to compare, each once.",
        examples=[["llama-2"]],
    )
    planned_steps: WholeNumber = Field(
        DEFAULT_STEPS,
        ge=1,
        le=MOST_STEPS,
        description="Settled steps of each arm after which it is decided.",
    )
    planned_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS), INTEGRAL_FLOAT] | None = Field(
        None,
        description="Tokens of the whole training, for the time that it takes.",
        examples=[260_000_000_000],
    )


@router.get("", response=TrialPage, **needs("read"), summary="List trials")
def trial_list(request: HttpRequest, query: Query[TrialFilter]) -> TrialPage:
    """Trials, the one that was begun last first."""
    trials = Trial.objects.filter_by(**query.fields).defer("figures").with_arms()
    rows, links = paginate(request, trials, query, by="-pk")
    return TrialPage(items=[TrialOut.of(row) for row in rows], next=links.next, prev=links.prev)


@router.post("", response={201: TrialDetail}, **needs("lead"), summary="Begin a trial")
@conflict_on("name", "baseline", "candidates")
def trial_new(request: HttpRequest, payload: TrialIn) -> Status[TrialDetail]:
    """Begin a trial; its figures come within a minute. Needs the role lead."""
    made = services.begin(**payload.model_dump(), by=caller(request).name, now=timezone.now())
    return Status(201, TrialDetail.of(made))


@router.get("/{name}", response=TrialDetail, **needs("read"), summary="One trial")
def trial_one(request: HttpRequest, name: Path[TrialName]) -> TrialDetail:
    """One trial, with what must match, what its arms took, and each candidate's figures."""
    return TrialDetail.of(_get_trial(name))


@router.post("/{name}/end", response=TrialDetail, **needs("lead"), summary="End a trial")
def trial_end(request: HttpRequest, name: Path[TrialName]) -> TrialDetail:
    """End a trial: later steps do not count; 409 where it is over. Needs the role lead."""
    trial = _get_trial(name)
    if not services.end(trial, now=timezone.now()):
        raise ProblemError(409, "It is over already.")
    return TrialDetail.of(trial)


def _get_trial(name: str) -> Trial:
    return get_object_or_404(Trial.objects.with_arms(), name=name)
