"""Trials: create, end, and read their comparisons."""

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
    doc,
)
from fleet.api.paging import NewestFirst, Paging, paginate
from fleet.models import Trial, TrialArm
from fleet.models.problem import ProblemError
from fleet.trials import services
from fleet.trials.figures import (
    ArmFigures,
    ArmPrice,
    Candidate,
    Comparison,
    Match,
    TrialFigures,
    VendorClaim,
    claim_for,
    load_figures,
)
from fleet.trials.layout import ArmLayout, Parallelism
from fleet.trials.services import (
    MOST_CANDIDATES,
    MOST_MARGIN_RATIO,
    MOST_REPLICATES,
    MOST_STEPS,
    MOST_TOKENS,
)
from fleet.trials.text import sentence
from fleet.trials.verdict import (
    NO_VERDICT,
    BreakEvenPrice,
    ListPrice,
    ListPriceComparison,
    PriceKinds,
    Verdict,
    judge,
)
from telemetry.catalog import age_note
from telemetry.statistics.verdicts import DEFAULT_STEPS, MARGIN_RATIO

UNKNOWN = "null if unknown"
router = Router(tags=["trials"])
ArmName = Annotated[str, Field(pattern=NAME)]


class TrialArmOut(ResponseSchema, source=TrialArm):
    """One run of a trial."""

    label = doc("Label of the arm.", "4 \u00d7 p5.48xlarge")
    run: str = doc("Name of the run.", "llama")
    is_baseline = doc("Whether it is the baseline.")
    replicate_of: str = doc(
        "Run of the arm of which it is a further run; empty: it is an arm.", "llama"
    )


class TrialOut(ResponseSchema, source=Trial):
    """A comparison of runs."""

    id = doc("Number of the trial.", 2)
    name: str = doc("Unique name, used in URLs.", "bakeoff")
    question = doc("The question to decide.")
    team = doc("Its team; empty if none.")
    planned_steps = doc("Settled steps of each arm needed for a decision.")
    planned_tokens = doc("Tokens of the whole training; null: not given.")
    margin_ratio = doc("Arms that differ by less are equivalent.", 0.02)
    created_by = doc("Who created it.", "ada")
    created_at = doc("When it was created, UTC.")
    ended_at = doc("When it was ended, UTC.")
    figured_at = doc("When its results were calculated, UTC; null: not yet.")
    arms: list[TrialArmOut] = doc("Its runs, the baseline first, further runs of an arm last.")
    url: str = doc("Path of its page.", "/trials/bakeoff/")


class TrialMatch(ResponseSchema, source=Match):
    """A field that must be the same in all arms."""

    field = doc("Name of the field.", "global_batch")
    values: list[str] = doc("Value of each arm, in the order of the arms.")
    state = doc("same, differs, or not reported.")


class TrialPrice(ResponseSchema, source=ArmPrice):
    """Price of all nodes of an arm from a time on."""

    from_s = doc("Start, Unix seconds.")
    usd_per_hour = doc("US dollars per hour.")
    basis = doc("Pricing terms.", "on demand, 2026-07-20")


class TrialParallelism(ResponseSchema, source=Parallelism):
    """A layout; null where it is not reported."""

    tp = doc("Tensor-parallel degree.", 8)
    pp = doc("Pipeline stages.", 1)
    cp = doc("Context-parallel degree.", 1)
    micro_batch = doc("Sequences computed at once.", 1)
    recompute = doc("none, selective or full.", "selective")


class TrialArmLayout(ResponseSchema, source=ArmLayout):
    """Layout and software of an arm, and its distance from the best layout on its nodes."""

    used: TrialParallelism = doc("Its layout.")
    software = doc("Versions that it reports; empty: none.", "neuronx-cc 2.21")
    best: TrialParallelism | None = doc(f"The best layout that fits in memory; {UNKNOWN}.")
    above_best_ratio = doc(
        "How much more a token costs than with the best layout: estimated by the step model, "
        f"not measured; {UNKNOWN}.",
        0.29,
    )
    spread_ratio = doc("Error of one estimate in 9 of 10 published runs.", 0.2)


class TrialArmFigures(TrialArmOut, source=ArmFigures):
    """Results of an arm, from its start to its newest step; null if unknown."""

    instance_type = doc("Instance type.", "trn2.48xlarge")
    n_nodes = doc("Number of nodes.")
    n_steps = doc("Steps since training began.")
    n_settled = doc("Settled steps: those after the warm-up.")
    n_warm_up = doc("Steps of the warm-up.")
    tokens_per_step = doc("Tokens of a typical step.")
    compile_s = doc("Seconds in which any process compiled.")
    ready_s = doc("Seconds from the run's start to its first step.")
    first_step_s = doc("Seconds of the first step.")
    warm_up_s = doc("Seconds of the warm-up steps.")
    usd_per_hour = doc("US dollars per hour of all its nodes.")
    usd_ready = doc("US dollars until the first step.")
    usd_warm_up = doc("US dollars of the warm-up.")
    usd_settled = doc("US dollars of the settled steps.")
    usd_between = doc("US dollars of pauses between steps.")
    usd = doc("US dollars in total.")
    first_step = doc("Number of the first stored step.")
    last_step = doc("Number of the newest step.")
    has_beginning = doc("Whether steps are stored since training began.")
    values = doc("Measures over the settled steps.")
    first_epoch_step_s = doc("Mean seconds of a step in its first epoch.")
    first_epoch_ratio = doc("Share of its first epoch, 0 to 1.")
    time_to_train_s = doc("Seconds from its start to the planned tokens, at the settled pace.")
    n_tokens = doc("Tokens trained since training began.")
    n_lost = doc("Steps that were repeated after failures.")
    settled_s = doc("Seconds of the settled steps with known tokens.")
    settled_tokens = doc("Tokens of the settled steps.")
    price_basis = doc("Source of its price; empty without one.")
    is_simulated = doc("Whether it is simulated, with assumed constants.")
    pace_change_ratio = doc("By how much its pace drifted or jumped; null: it did not.")
    losses: list[tuple[float, float]] = doc(
        "Tokens, and the mean training loss of the steps before them; empty: unknown."
    )
    prices: list[TrialPrice] = doc("Its prices, oldest first.")
    layout: TrialArmLayout | None = doc("Its layout; null in results of earlier versions.")
    end_reason = doc("Why its job failed; empty: it did not, or it is unknown.")
    bad_loss = doc("NaN, Infinity or -Infinity where its log ends so; else empty.")
    bad_loss_step = doc("The first step of that loss.")


class TrialComparison(ResponseSchema, source=Comparison):
    """One measure of a candidate and the baseline."""

    measure = doc("Name of the measure.", "usd_per_mtok")
    baseline = doc("Value of the baseline, in the unit of the name.")
    candidate = doc("Value of the candidate.")
    ratio = doc("Candidate over baseline, minus one.", -0.31)
    low = doc(f"Lower end of its 95 % interval; {UNKNOWN}.")
    high = doc(f"Upper end of its 95 % interval; {UNKNOWN}.")
    word = doc(
        "better, worse, equivalent, or cannot tell yet; `none: arms differ` if the arms train "
        "different things; `none: price kinds differ` for dollars on different terms; "
        "`none: tokens unknown` where only step times are known.",
        "better",
    )
    n_more_steps = doc("Estimated steps of each arm until a verdict; null: unknown.")


class TrialClaim(ResponseSchema, source=VendorClaim):
    """The vendor's claim about tokens per dollar."""

    low = doc("Tokens per dollar over the baseline's, minus one: lower end.")
    high = doc("Upper end.")
    words: str = doc("The claim as text.")
    source = doc("Source of the claim.")
    date = doc("Date of the claim.", "2024-12-03")


class TrialListPrice(ResponseSchema, source=ListPrice):
    """The catalog's price of a node-hour of one kind."""

    low_usd = doc("US dollars; the lowest of several.")
    high_usd = doc("US dollars; the highest of several.")
    region = doc("AWS region.", "us-east-1")
    date = doc("Date of the price.", "2026-07-20")
    age_note: str = doc("Its age; empty up to 90 days.", "as of 2026-07-20, 126 days old")


class TrialAtKind(ResponseSchema, source=ListPriceComparison):
    """Dollars per token of both arms at list prices of the same kind."""

    kind = doc(
        "on demand, 1-year, 3-year, reserved, capacity block, spot or contract.", "capacity block"
    )
    baseline: TrialListPrice = doc("The baseline's list price.")
    candidate: TrialListPrice = doc("The candidate's list price.")
    comparison: TrialComparison = doc("US dollars per million tokens.")


class TrialBreakEven(ResponseSchema, source=BreakEvenPrice):
    """The baseline's node-hour price above which the candidate is cheaper per token."""

    instance_type = doc("That of the baseline.", "p5.48xlarge")
    usd = doc("US dollars per node and hour.", 45.4)
    low = doc(f"Lower end of its 95 % interval; {UNKNOWN}.")
    high = doc(f"Upper end; {UNKNOWN}.")
    candidate_usd = doc("Price of the candidate's node-hour.")
    is_paid = doc("Whether that price was paid; else it is the list price.")


class TrialPriceKinds(ResponseSchema, source=PriceKinds):
    """Pricing terms of the arms, and the comparison on equal terms."""

    baseline = doc("Kind of the baseline's price; empty: not stated.")
    candidate = doc("The candidate's kind.", "capacity block")
    is_alike = doc("Whether they are the same; else dollars as priced give no verdict.")
    at_equal: list[TrialAtKind] = doc(
        "One comparison for each kind that the catalog lists for both."
    )
    break_even: TrialBreakEven | None = doc(f"The break-even price; {UNKNOWN}.")


class TrialCandidate(ResponseSchema, source=Candidate):
    """One candidate against the baseline."""

    label = doc("Label of the arm.")
    run = doc("Name of its run.")
    sentence: str = doc("The verdict as text.")
    badge: str = doc(
        "better, worse, equivalent, cannot tell yet, arms differ, price kinds differ, price "
        "unknown, or tokens unknown; empty without results.",
        "price kinds differ",
    )
    price_kinds: TrialPriceKinds = doc("Comparison on equal terms, and break-even.")
    comparisons: list[TrialComparison] = doc("One comparison for each measure.")
    equal_tokens = doc("Tokens at which losses are compared.")
    is_decided = doc("Whether the planned steps are done.")
    n_runs: list[int] = doc("Runs of the baseline and of the candidate.", [1, 1])
    is_provisional = doc(
        "Whether the variation between runs is assumed, because an arm has fewer than three runs."
    )
    claim: TrialClaim | None = doc("The vendor's claim about these instance types.")


class TrialDetail(TrialOut):
    """A trial with its results; lists are empty until they are calculated."""

    matches: list[TrialMatch] = doc("Fields that must be the same in all arms.")
    figures: list[TrialArmFigures] = doc("Results of each arm.")
    candidates: list[TrialCandidate] = doc("Each candidate against the baseline.")


class TrialPage(NewestFirst[TrialOut]):
    """A page of trials."""


class TrialFilter(Paging):
    """Filter of trials."""

    state: Literal["", "open", "over"] = doc("open, or over.", default="")
    team: Text = doc("Team, exact match.", "vision", default="")


class TrialIn(RequestSchema):
    """A trial to create."""

    name: str = doc("Unique name.", "move", pattern=r"^[A-Za-z0-9_-]{1,60}$")
    question: str = doc(
        "The question to decide.",
        "Do we move to trn2?",
        max_length=services.MAX_QUESTION,
        pattern=NON_BLANK_LINE,
    )
    team: str = doc("Its team.", default="", max_length=services.MAX_TEAM, pattern=LINE)
    baseline: ArmName = doc("Run of the baseline.", "llama")
    candidates: list[ArmName] = doc(
        "Runs to compare, each once.", ["llama-2"], min_length=1, max_length=MOST_CANDIDATES
    )
    planned_steps: WholeNumber = doc(
        "Settled steps of each arm needed for a decision.",
        default=DEFAULT_STEPS,
        ge=1,
        le=MOST_STEPS,
    )
    replicates: dict[ArmName, Annotated[list[ArmName], Field(max_length=MOST_REPLICATES)]] = Field(
        default_factory=dict,
        max_length=MOST_CANDIDATES + 1,
        description="Further runs of an arm, by its run.",
        examples=[{}],
    )
    margin_ratio: float = doc(
        "Arms that differ by less are equivalent.",
        default=MARGIN_RATIO,
        ge=0,
        le=MOST_MARGIN_RATIO,
    )
    planned_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS), INTEGRAL_FLOAT] | None = doc(
        "Tokens of the whole training, to estimate its duration.", 260_000_000_000, default=None
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
        matches=figures.matches,
        figures=[TrialArmFigures(**msgspec.to_builtins(arm)) for arm in figures.arms],
        candidates=[
            _candidate(figures, candidate, baseline, arms[candidate.run])
            for candidate in figures.candidates
            if baseline is not None
        ],
    )


def _candidate(
    figures: TrialFigures, candidate: Candidate, baseline: ArmFigures, arm: ArmFigures
) -> TrialCandidate:
    verdict = judge(figures, candidate)
    claim = claim_for(baseline.instance_type, arm.instance_type)
    return TrialCandidate.from_object(
        candidate,
        sentence=sentence(candidate, baseline.label, verdict),
        badge=verdict.badge,
        price_kinds=_price_kinds(verdict),
        n_runs=list(candidate.n_runs),
        comparisons=[
            _comparison(comparison, verdict.why_none(comparison.measure))
            for comparison in candidate.comparisons
        ],
        claim=TrialClaim.from_object(claim, words=claim.text) if claim else None,
    )


def _comparison(found: Comparison, why: str) -> TrialComparison:
    """Return a comparison; ``why`` is the reason that it has no verdict, or empty."""
    none = {"word": f"{NO_VERDICT}{why}", "n_more_steps": None} if why else {}
    return TrialComparison.from_object(found, **none)


def _price_kinds(verdict: Verdict) -> TrialPriceKinds:
    why = verdict.refused
    return TrialPriceKinds.from_object(
        verdict.kinds,
        at_equal=[
            TrialAtKind.from_object(
                price,
                baseline=_list_price(price.prices.baseline),
                candidate=_list_price(price.prices.candidate),
                comparison=_comparison(price.comparison, why),
            )
            for price in verdict.at_list_prices
        ],
        break_even=verdict.break_even,
    )


def _list_price(price: ListPrice) -> TrialListPrice:
    note = age_note(price.date, timezone.now().date())
    return TrialListPrice.from_object(price, age_note=note)
