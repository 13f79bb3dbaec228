"""The fleet of the demo: contracts and budgets, runs (demo.toml), trials, a preflight."""

import tomllib
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import msgspec
from django.db import transaction

from fleet.alerts.actions import acknowledge
from fleet.checks.preflights import (
    request_preflight,
    run_all_stages,
    set_requirement,
    update_preflight_alerts,
)
from fleet.models import Budget, Preflight, Run, TeamPrice, Trial
from fleet.simulation import runs as simulated
from fleet.simulation.compiles import store_first
from fleet.simulation.runs import follow, plan_of
from fleet.trials.services import begin
from telemetry import catalog
from telemetry.simulate.plan import RunSpec
from telemetry.simulate.preflight import ProbeFault
from telemetry.simulate.shard import clock_at, played_steps
from telemetry.simulate.timeline import start_clock
from telemetry.statistics.verdicts import DEFAULT_STEPS
from telemetry.store import durable

BY = "demo"
DAY = timedelta(days=1)
# Research has got out of an older block; its run that goes on pays each part at its price.
CHANGED_AGO = timedelta(hours=6)
LONG_AGO = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Contract:
    """A team's price: a published one, given by its terms and the date of its source."""

    team: str
    instance_type: str
    basis: TeamPrice.Basis
    dated: str
    ago: timedelta = LONG_AGO


Basis = TeamPrice.Basis
CONTRACTS = (
    Contract("LLM", "trn2.48xlarge", Basis.CAPACITY_BLOCK, "2026-10"),
    Contract("retail vision", "trn2.48xlarge", Basis.CAPACITY_BLOCK, "2026-10"),
    Contract("research", "trn1.32xlarge", Basis.CAPACITY_BLOCK, "2025"),
    Contract("research", "trn1.32xlarge", Basis.CAPACITY_BLOCK, "2026-10", CHANGED_AGO),
    Contract("search", "trn1.2xlarge", Basis.RESERVED, "2"),
)
# Dollars, and how many days from yesterday on.
BUDGETS = {
    "LLM": (650_000.0, 30),
    "retail vision": (30_000.0, 3),
    "research": (45_000.0, 30),
    "search": (3_500.0, 30),
}
# One pass over the data, and the whole training, in tokens.
LENGTHS = {"pretrain-gpt": (None, 2_000_000_000_000), "search-bert": (3_300_000_000, None)}


def create_contracts(*, now: datetime) -> None:
    """Store the teams' prices, each valid from ``ago`` before now."""
    for each in CONTRACTS:
        instance = catalog.instance(each.instance_type)
        offer = next(
            offer
            for offer in instance.prices
            if offer.basis.startswith(each.basis.value) and offer.date.startswith(each.dated)
        )
        TeamPrice.objects.create(
            team=each.team,
            instance_type=each.instance_type,
            basis=each.basis,
            usd_per_node_hour=offer.usd_per_hour,
            valid_from=now - each.ago,
            source=f"{offer.source.title}, {offer.date}"[:200],
            set_by=BY,
            set_at=now - each.ago,
        )


def create_budgets(*, now: datetime) -> None:
    """Set each team's budget, and the planned length of some runs."""
    begins = now.replace(hour=0, minute=0, second=0, microsecond=0) - DAY
    for team, (usd, days) in BUDGETS.items():
        Budget.objects.create(
            team=team,
            usd=usd,
            starts_at=begins,
            ends_at=begins + days * DAY,
            set_by=BY,
            set_at=begins,
        )
    for name, (per_epoch, planned) in LENGTHS.items():
        stated = {"tokens_per_epoch": per_epoch, "planned_tokens": planned}
        Run.objects.filter(name=name).update(**{k: v for k, v in stated.items() if v})


@dataclass(frozen=True, slots=True)
class DemoRun:
    spec: RunSpec
    team: str
    purpose: str
    zone: str
    age: timedelta = timedelta(hours=24)
    labels: dict[str, str] = field(default_factory=dict)


with Path(__file__).with_name("demo.toml").open("rb") as _file:
    FLEET = msgspec.convert(tomllib.load(_file)["run"], tuple[DemoRun, ...])


@transaction.atomic
def create_fleet(*, now: datetime, longest: timedelta) -> list[Run]:
    """Create the demo's runs with their nodes, started in the past; return the runs."""
    create_contracts(now=now)
    for demo in FLEET:
        create_run(demo, started_at=now - min(demo.age, longest))
    create_budgets(now=now)
    return list(Run.objects.simulated().prefetch_related("nodes").order_by("pk"))


def create_run(demo: DemoRun, *, started_at: datetime) -> Run:
    return simulated.create_run(
        demo.spec,
        started_at=started_at,
        team=demo.team,
        purpose=demo.purpose,
        zone=demo.zone,
        labels=demo.labels,
        # Runs share no rack.
        rack_prefix=f"r{Run.objects.count()}-",
    )


@dataclass(frozen=True, slots=True)
class DemoTrial:
    name: str
    question: str
    team: str
    baseline: str
    candidate: str
    planned_tokens: int | None = None


TRIALS = (
    DemoTrial(
        name="vit-bakeoff",
        question="Does the ViT move to Trainium2: dollars, pace, all-reduce-heavy steps?",
        team="retail vision",
        baseline="vit-bakeoff-p5",
        candidate="vit-bakeoff-trn2",
    ),
    # Twenty tokens per parameter, as J. Hoffmann et al., arXiv:2203.15556, would spend on it.
    DemoTrial(
        name="trn2-or-p5",
        question="Does the 13B model train on Trainium2: dollars per epoch, compile, throughput?",
        team="LLM",
        baseline="trial-13b-p5",
        candidate="trial-13b-trn2",
        planned_tokens=260_000_000_000,
    ),
)


def ensure_trials(*, now: datetime) -> list[Trial]:
    """Begin the trials whose runs exist, unless already begun; return those begun now."""
    arms = {name for each in TRIALS for name in (each.baseline, each.candidate)}
    there = Run.objects.simulated().filter(name__in=arms).values_list("name", flat=True)
    known = Trial.objects.filter(name__in=[each.name for each in TRIALS])
    begun, runs = set(known.values_list("name", flat=True)), set(there)
    return [
        begin(
            each.name,
            each.question,
            baseline=each.baseline,
            candidates=[each.candidate],
            team=each.team,
            planned_steps=DEFAULT_STEPS,
            planned_tokens=each.planned_tokens,
            by="demo-bot",
            now=now,
        )
        for each in TRIALS
        if each.name not in begun and {each.baseline, each.candidate} <= runs
    ]


NAME, LIKE = "vit-fp8-probe", "vit-bakeoff-trn2"
AGO, N_STEPS, COMPILE_S = timedelta(hours=30), 4_000, 900.0
LONGEST_S = 3 * 3600


@transaction.atomic
def ensure_probe(*, now: datetime) -> Run | None:
    """Create the similar run, played to its end; return it if this call created it."""
    if Run.objects.filter(name=NAME).exists():
        return None
    demo = next(each for each in FLEET if each.spec.name == LIKE)
    spec = msgspec.structs.replace(
        demo.spec, name=NAME, precision="fp8", compile_s=COMPILE_S, max_steps=N_STEPS
    )
    run = simulated.create_run(
        spec,
        started_at=now - AGO,
        team=demo.team,
        purpose="An hour in FP8, before the bake-off",
        zone=demo.zone,
    )
    plan = plan_of(run, [])
    until = plan.epoch_s + LONGEST_S
    steps = played_steps(plan, start_clock(plan), until)
    durable.write_steps(steps)
    over_s = int(steps.ended_at_s[-1]) + 1
    follow(run, clock_at(plan, start_clock(plan), over_s))
    run.clock = {"over": {}}
    run.save()
    run.nodes.all().delete()
    store_first(run, spec, n_kept=0, now=now, noted_at=None)
    return run


RUN, SPARES = "pretrain-gpt", ("spare-01", "spare-02", "spare-03", "spare-04")
# A bad EFA device, a missing accelerator, failing memory, and a spare slow with two others.
PREFLIGHT_FAULTS = (
    ProbeFault(kind="efa_latency", node="spare-02", device=11, magnitude=4.0),
    ProbeFault(kind="chip_missing", node="spare-03"),
    ProbeFault(kind="ecc_uncorrected", node="spare-04", magnitude=6.0),
    ProbeFault(kind="pair_slow", node=f"{RUN}-05", peer="spare-01", magnitude=2.5),
    ProbeFault(kind="pair_slow", node=f"{RUN}-09", peer="spare-01", magnitude=2.5),
)
BEFORE_START = timedelta(minutes=40)
# This run started without its preflight; its alert is acknowledged.
WITHOUT_PREFLIGHT = "longctx"
WHY, ACKNOWLEDGED_AFTER = (
    "taken over as they stood from the last job, which ran clean",
    timedelta(minutes=9),
)


def ensure_preflight() -> Preflight | None:
    """Create the preflight of the largest run; return it if this call created it."""
    run = Run.objects.simulated().filter(name=RUN).first()
    if run is None or Preflight.objects.filter(run=run).exists():
        return None
    nodes = list(run.nodes.order_by("rank").values_list("name", flat=True))
    at = run.started_at - BEFORE_START
    preflight = request_preflight(
        [*nodes, *SPARES],
        take=len(nodes),
        run=run,
        faults=PREFLIGHT_FAULTS,
        by="demo-bot",
        now=at,
        is_rehearsal=True,
    )
    run_all_stages(preflight, now=at + timedelta(minutes=9))
    set_requirement(run, requires=True)
    for started in Run.objects.simulated().filter(name=WITHOUT_PREFLIGHT):
        set_requirement(started, requires=True)
        at = started.started_at + ACKNOWLEDGED_AFTER
        for alert in update_preflight_alerts(now=at):
            acknowledge(alert, by="demo-bot", comment=WHY, now=at)
    return preflight
