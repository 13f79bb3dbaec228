"""Trials: create, end, and read their comparisons."""

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from django.utils import timezone
from ninja import Field, Path, Query, Router, Status

from fleet.api.auth import caller, needs
from fleet.api.fields import (
    INTEGRAL_FLOAT,
    LINE,
    NAME,
    NON_BLANK_LINE,
    RequestSchema,
    ResponseSchema,
    Text,
    TrialName,
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
    MatchState,
    TrialFigures,
    claim_for,
    load_figures,
)
from fleet.trials.services import (
    MOST_CANDIDATES,
    MOST_MARGIN_RATIO,
    MOST_REPLICATES,
    MOST_STEPS,
    MOST_TOKENS,
)
from fleet.trials.text import sentence
from fleet.trials.verdict import NO_VERDICT, ListPrice, Verdict, judge
from telemetry.catalog import age_note
from telemetry.statistics.verdicts import DEFAULT_STEPS, MARGIN_RATIO

UNKNOWN = "null if unknown"
router = Router(tags=["trials"])
ArmName = Annotated[str, Field(pattern=NAME)]


class TrialArmOut(ResponseSchema):
    """One run of a trial."""

    label: str = Field(description="Label of the arm.", examples=["4 \u00d7 p5.48xlarge"])
    run: str = Field(description="Name of the run.", examples=["llama"])
    is_baseline: bool = Field(description="Whether it is the baseline.")
    replicate_of: str = Field(
        description="Run of the arm of which it is a further run; empty: it is an arm.",
        examples=["llama"],
    )


class TrialOut(ResponseSchema):
    """A comparison of runs."""

    id: int = Field(description="Number of the trial.", examples=[2])
    name: str = Field(description="Unique name, used in URLs.", examples=["bakeoff"])
    question: str = Field(description="The question to decide.")
    team: str = Field(description="Its team; empty if none.")
    planned_steps: int = Field(description="Settled steps of each arm needed for a decision.")
    planned_tokens: int | None = Field(
        description="Tokens of the whole training; null: not given."
    )
    margin_ratio: float = Field(
        description="Arms that differ by less are equivalent.", examples=[0.02]
    )
    created_by: str = Field(description="Who created it.", examples=["ada"])
    created_at: datetime = Field(description="When it was created, UTC.")
    ended_at: datetime | None = Field(description="When it was ended, UTC.")
    figured_at: datetime | None = Field(
        description="When its results were calculated, UTC; null: not yet."
    )
    arms: list[TrialArmOut] = Field(
        description="Its runs, the baseline first, further runs of an arm last."
    )
    url: str = Field(description="Path of its page.", examples=["/trials/bakeoff/"])


class TrialMatch(ResponseSchema):
    """A field that must be the same in all arms."""

    field: str = Field(description="Name of the field.", examples=["global_batch"])
    values: list[str] = Field(description="Value of each arm, in the order of the arms.")
    state: MatchState = Field(description="same, differs, or not reported.")


class TrialPrice(ResponseSchema):
    """Price of all nodes of an arm from a time on."""

    from_s: float = Field(description="Start, Unix seconds.")
    usd_per_hour: float = Field(description="US dollars per hour.")
    basis: str = Field(description="Pricing terms.", examples=["on demand, 2026-07-20"])


class TrialParallelism(ResponseSchema):
    """A layout; null where it is not reported."""

    tp: int = Field(description="Tensor-parallel degree.", examples=[8])
    pp: int = Field(description="Pipeline stages.", examples=[1])
    cp: int = Field(description="Context-parallel degree.", examples=[1])
    micro_batch: int | None = Field(description="Sequences computed at once.", examples=[1])
    recompute: str | None = Field(description="none, selective or full.", examples=["selective"])


class TrialArmLayout(ResponseSchema):
    """Layout and software of an arm, and its distance from the best layout on its nodes."""

    used: TrialParallelism = Field(description="Its layout.")
    software: str = Field(
        description="Versions that it reports; empty: none.", examples=["neuronx-cc 2.21"]
    )
    best: TrialParallelism | None = Field(
        description=f"The best layout that fits in memory; {UNKNOWN}."
    )
    above_best_ratio: float | None = Field(
        description="By how much a token is dearer than with the best layout: estimated by the "
        f"step model, not measured; {UNKNOWN}.",
        examples=[0.29],
    )
    spread_ratio: float | None = Field(
        description="Error of one estimate in 9 of 10 published runs.", examples=[0.2]
    )


class TrialArmFigures(TrialArmOut):
    """Results of an arm, from its start to its newest step; null if unknown."""

    instance_type: str = Field(description="Instance type.", examples=["trn2.48xlarge"])
    n_nodes: int = Field(description="Number of nodes.")
    n_steps: int = Field(description="Steps since training began.")
    n_settled: int = Field(description="Settled steps: those after the warm-up.")
    n_warm_up: int = Field(description="Steps of the warm-up.")
    tokens_per_step: float | None = Field(description="Tokens of a typical step.")
    compile_s: float | None = Field(description="Seconds in which any process compiled.")
    ready_s: float | None = Field(description="Seconds from the run's start to its first step.")
    first_step_s: float | None = Field(description="Seconds of the first step.")
    warm_up_s: float = Field(description="Seconds of the warm-up steps.")
    usd_per_hour: float | None = Field(description="US dollars per hour of all its nodes.")
    usd_ready: float | None = Field(description="US dollars until the first step.")
    usd_warm_up: float | None = Field(description="US dollars of the warm-up.")
    usd_settled: float | None = Field(description="US dollars of the settled steps.")
    usd_between: float | None = Field(description="US dollars of pauses between steps.")
    usd: float | None = Field(description="US dollars in total.")
    last_step: int = Field(description="Number of the newest step.")
    values: dict[str, float] = Field(description="Measures over the settled steps.")
    first_epoch_step_s: float | None = Field(
        description="Mean seconds of a step in its first epoch."
    )
    first_epoch_ratio: float | None = Field(description="Share of its first epoch, 0 to 1.")
    time_to_train_s: float | None = Field(
        description="Seconds from its start to the planned tokens, at the settled pace."
    )
    n_tokens: float | None = Field(description="Tokens trained since training began.")
    n_lost: int = Field(description="Steps that were repeated after failures.")
    settled_s: float | None = Field(description="Seconds of the settled steps with known tokens.")
    settled_tokens: float | None = Field(description="Tokens of the settled steps.")
    price_basis: str = Field(description="Source of its price; empty without one.")
    is_simulated: bool = Field(description="Whether it is simulated, with assumed constants.")
    pace_change_ratio: float | None = Field(
        description="By how much its pace drifted or jumped; null: it did not."
    )
    losses: list[tuple[float, float]] = Field(
        description="Tokens, and the mean training loss of the steps before them; empty: unknown."
    )
    prices: list[TrialPrice] = Field(description="Its prices, oldest first.")
    layout: TrialArmLayout | None = Field(
        description="Its layout; null in results of earlier versions."
    )


class TrialComparison(ResponseSchema):
    """One measure of a candidate and the baseline."""

    measure: str = Field(description="Name of the measure.", examples=["usd_per_mtok"])
    baseline: float = Field(description="Value of the baseline, in the unit of the name.")
    candidate: float = Field(description="Value of the candidate.")
    ratio: float = Field(description="Candidate over baseline, minus one.", examples=[-0.31])
    low: float | None = Field(description=f"Lower end of its 95 % interval; {UNKNOWN}.")
    high: float | None = Field(description=f"Upper end of its 95 % interval; {UNKNOWN}.")
    word: str = Field(
        description="better, worse, equivalent, or cannot tell yet; `none: arms differ` if the "
        "arms train different things; `none: price kinds differ` for dollars on different terms.",
        examples=["better"],
    )
    n_more_steps: int | None = Field(
        description="Estimated steps of each arm until a verdict; null: unknown."
    )


class TrialClaim(ResponseSchema):
    """The vendor's claim about tokens per dollar."""

    low: float = Field(description="Tokens per dollar over the baseline's, minus one: lower end.")
    high: float = Field(description="Upper end.")
    words: str = Field(description="The claim as text.")
    source: str = Field(description="Source of the claim.")
    date: str = Field(description="Date of the claim.", examples=["2024-12-03"])


class TrialListPrice(ResponseSchema):
    """The catalog's price of a node-hour of one kind."""

    low_usd: float = Field(description="US dollars; the lowest of several.")
    high_usd: float = Field(description="US dollars; the highest of several.")
    region: str = Field(description="AWS region.", examples=["us-east-1"])
    date: str = Field(description="Date of the price.", examples=["2026-07-20"])
    age_note: str = Field(
        description="Its age; empty up to 90 days.", examples=["as of 2026-07-20, 126 days old"]
    )


class TrialAtKind(ResponseSchema):
    """Dollars per token of both arms at list prices of the same kind."""

    kind: str = Field(
        description="on demand, 1-year, 3-year, reserved, capacity block, spot or contract.",
        examples=["capacity block"],
    )
    baseline: TrialListPrice = Field(description="The baseline's list price.")
    candidate: TrialListPrice = Field(description="The candidate's list price.")
    comparison: TrialComparison = Field(description="US dollars per million tokens.")


class TrialBreakEven(ResponseSchema):
    """The baseline's node-hour price above which the candidate is cheaper per token."""

    instance_type: str = Field(description="That of the baseline.", examples=["p5.48xlarge"])
    usd: float = Field(description="US dollars per node and hour.", examples=[45.4])
    low: float | None = Field(description=f"Lower end of its 95 % interval; {UNKNOWN}.")
    high: float | None = Field(description=f"Upper end; {UNKNOWN}.")
    candidate_usd: float = Field(description="Price of the candidate's node-hour.")
    is_paid: bool = Field(description="Whether that price was paid; else it is the list price.")


class TrialPriceKinds(ResponseSchema):
    """Pricing terms of the arms, and the comparison on equal terms."""

    baseline: str = Field(description="Kind of the baseline's price; empty: not stated.")
    candidate: str = Field(description="The candidate's kind.", examples=["capacity block"])
    is_alike: bool = Field(
        description="Whether they are the same; else dollars as priced give no verdict."
    )
    at_equal: list[TrialAtKind] = Field(
        description="One comparison for each kind that the catalog lists for both."
    )
    break_even: TrialBreakEven | None = Field(description=f"The break-even price; {UNKNOWN}.")


class TrialCandidate(ResponseSchema):
    """One candidate against the baseline."""

    label: str = Field(description="Label of the arm.")
    run: str = Field(description="Name of its run.")
    sentence: str = Field(description="The verdict as text.")
    badge: str = Field(
        description="better, worse, equivalent, cannot tell yet, arms differ, price kinds "
        "differ, or price unknown; empty without results.",
        examples=["price kinds differ"],
    )
    price_kinds: TrialPriceKinds = Field(description="Comparison on equal terms, and break-even.")
    comparisons: list[TrialComparison] = Field(description="One comparison for each measure.")
    equal_tokens: float | None = Field(description="Tokens at which losses are compared.")
    is_decided: bool = Field(description="Whether the planned steps are done.")
    n_runs: list[int] = Field(
        description="Runs of the baseline and of the candidate.", examples=[[1, 1]]
    )
    is_provisional: bool = Field(
        description="Whether the variation between runs is assumed, because an arm has fewer than "
        "three runs."
    )
    claim: TrialClaim | None = Field(description="The vendor's claim about these instance types.")


class TrialDetail(TrialOut):
    """A trial with its results; lists are empty until they are calculated."""

    matches: list[TrialMatch] = Field(description="Fields that must be the same in all arms.")
    figures: list[TrialArmFigures] = Field(description="Results of each arm.")
    candidates: list[TrialCandidate] = Field(description="Each candidate against the baseline.")


class TrialPage(PageLinks):
    """A page of trials."""

    items: list[TrialOut] = Field(description="The trials of this page.")
    sorted_by: str = Field(default="-id", description="Order: newest first.")


class TrialFilter(Paging):
    """Filter of trials."""

    state: Literal["", "open", "over"] = Field("", description="open, or over.")
    team: Text = Field("", description="Team, exact match.", examples=["vision"])


class TrialIn(RequestSchema):
    """A trial to create."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9_-]{1,60}$", description="Unique name.", examples=["move"]
    )
    question: str = Field(
        max_length=services.MAX_QUESTION,
        pattern=NON_BLANK_LINE,
        description="The question to decide.",
        examples=["Do we move to trn2?"],
    )
    team: str = Field("", max_length=services.MAX_TEAM, pattern=LINE, description="Its team.")
    baseline: ArmName = Field(description="Run of the baseline.", examples=["llama"])
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
        description="Settled steps of each arm needed for a decision.",
    )
    replicates: dict[ArmName, Annotated[list[ArmName], Field(max_length=MOST_REPLICATES)]] = Field(
        default_factory=dict,
        max_length=MOST_CANDIDATES + 1,
        description="Further runs of an arm, by its run.",
        examples=[{}],
    )
    margin_ratio: float = Field(
        MARGIN_RATIO,
        ge=0,
        le=MOST_MARGIN_RATIO,
        description="Arms that differ by less are equivalent.",
    )
    planned_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS), INTEGRAL_FLOAT] | None = Field(
        None,
        description="Tokens of the whole training, to estimate its duration.",
        examples=[260_000_000_000],
    )


@router.get("", response=TrialPage, **needs("read"), summary="List trials")
def trial_list(request: HttpRequest, query: Query[TrialFilter]) -> TrialPage:
    """List trials, newest first."""
    trials = Trial.objects.filter_by(**query.fields).defer("figures").with_arms()
    rows, links = paginate(request, trials, query, by="-pk")
    items = [TrialOut.from_object(row, **_computed(row)) for row in rows]
    return TrialPage(items=items, **links)


@router.post("", response={201: TrialDetail}, **needs("lead"), summary="Create a trial")
@conflict_on("name", "baseline", "candidates", "replicates")
def trial_new(request: HttpRequest, payload: TrialIn) -> Status[TrialDetail]:
    """Create a trial; results are available within a minute. Needs the role lead."""
    made = services.begin(**payload.model_dump(), by=caller(request).name, now=timezone.now())
    return Status(201, _detail(made))


@router.get("/{name}", response=TrialDetail, **needs("read"), summary="One trial")
def trial_one(request: HttpRequest, name: Path[TrialName]) -> TrialDetail:
    """Get one trial with its results."""
    return _detail(_get_trial(name))


@router.post("/{name}/end", response=TrialDetail, **needs("lead"), summary="End a trial")
def trial_end(request: HttpRequest, name: Path[TrialName]) -> TrialDetail:
    """End a trial, so that later steps do not count; 409 if it has ended. Needs the role lead."""
    trial = _get_trial(name)
    if not services.end(trial, now=timezone.now()):
        raise ProblemError(409, "It has already ended.")
    return _detail(trial)


def _get_trial(name: str) -> Trial:
    return get_object_or_404(Trial.objects.with_arms(), name=name)


def _computed(trial: Trial) -> dict[str, Any]:
    """Return the fields of a trial, selected with its arms, that are not attributes of it."""
    arms = [
        TrialArmOut.from_object(
            arm,
            run=arm.run.name,
            replicate_of=arm.replicate_of.run.name if arm.replicate_of else "",
        )
        for arm in trial.arms.all()
    ]
    return {"arms": arms, "url": trial.get_absolute_url()}


def _detail(trial: Trial) -> TrialDetail:
    figures = load_figures(trial.figures) or TrialFigures()
    arms = {arm.run: arm for arm in figures.arms}
    baseline = next((arm for arm in figures.arms if arm.is_baseline), None)
    return TrialDetail.from_object(
        trial,
        **_computed(trial),
        matches=[
            TrialMatch.from_object(match, values=list(match.values)) for match in figures.matches
        ],
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
        n_runs=list(candidate.n_runs),
        is_provisional=candidate.is_provisional,
        comparisons=[
            _comparison(each, verdict.why_none(each.measure)) for each in candidate.comparisons
        ],
        claim=TrialClaim.from_object(claim, words=claim.text) if claim else None,
    )


def _comparison(found: Comparison, why: str) -> TrialComparison:
    """Return a comparison; ``why`` is the reason that it has no verdict, or empty."""
    none = {"word": f"{NO_VERDICT}{why}", "n_more_steps": None} if why else {}
    return TrialComparison(**(msgspec.structs.asdict(found) | none))


def _price_kinds(verdict: Verdict) -> TrialPriceKinds:
    found, why = verdict.break_even, verdict.refused
    return TrialPriceKinds(
        baseline=verdict.kinds.baseline,
        candidate=verdict.kinds.candidate,
        is_alike=verdict.kinds.is_alike,
        at_equal=[
            TrialAtKind(
                kind=each.kind,
                baseline=_list_price(each.prices.baseline),
                candidate=_list_price(each.prices.candidate),
                comparison=_comparison(each.comparison, why),
            )
            for each in verdict.at_list_prices
        ],
        break_even=TrialBreakEven(**asdict(found)) if found else None,
    )


def _list_price(price: ListPrice) -> TrialListPrice:
    note = age_note(price.date, timezone.now().date())
    return TrialListPrice(**asdict(price), age_note=note)
