"""Nodes and runs in a sentence each: how it is, where it belongs, since when."""

import math
from datetime import UTC, datetime

from django.utils.html import format_html
from django.utils.safestring import SafeString

from fleet import formatting
from fleet.formatting import duration, percent, seconds, si, usd
from fleet.models import Node, Run
from fleet.runs.summaries import NodeNow, RunNow

NOTHING = SafeString("")
# Reporters of a job give a sign of life every ten seconds.
QUIET_S = 60.0


def of_node(now: NodeNow, *, n_alerts: int, at: datetime) -> SafeString:
    """Say how a node is, where it belongs and since when."""
    is_fine = now.is_up and not n_alerts
    return format_html(
        "{} {}{}{}",
        _how_it_is(now, at),
        _where(now.node),
        _alerts(n_alerts),
        " No open alerts." if is_fine else "",
    )


def _how_it_is(now: NodeNow, at: datetime) -> SafeString:
    name = now.node.name
    if now.last_seen_s is None and not now.is_silent:
        return format_html("<b>{}</b> never reported.", name)
    if now.last_seen_s is None:
        return format_html("<b>{}</b> has <b class='bad-text'>never reported</b>.", name)
    age_s = at.timestamp() - now.last_seen_s
    if not now.is_up and not now.is_silent:
        return format_html("<b>{}</b> last reported {} ago.", name, duration(age_s))
    if not now.is_up:
        seen = datetime.fromtimestamp(now.last_seen_s, UTC)
        return format_html(
            "<b>{}</b> has been <b class='bad-text'>silent for {}</b>, since {} UTC.",
            name,
            duration(age_s),
            f"{seen:%H:%M:%S}",
        )
    return _busy(now)


def _busy(now: NodeNow) -> SafeString:
    name = now.node.name
    if now.node.source == Node.Source.STEPS:
        text = "<b>{}</b> is training. No agent reports, so there are no hardware metrics."
        return format_html(text, name)
    if now.utilization_mean is None:
        return format_html("<b>{}</b> is reporting, but no process uses its cores.", name)
    cores = "core is" if now.node.n_cores == 1 else "cores are"
    return format_html(
        "<b>{}</b> is reporting; its {} {} <b>{}</b> busy.",
        name,
        now.node.n_cores,
        cores,
        percent(now.utilization_mean, 0),
    )


def _where(node: Node) -> SafeString:
    if node.run is None:
        return format_html("It belongs to no run. First seen {}.", _day(node.first_seen_at))
    return format_html(
        'It is rank {} of <a href="{}">{}</a>, which {}. First seen {}.',
        node.rank,
        node.run.get_absolute_url(),
        node.run.name,
        doing(node.run),
        _day(node.first_seen_at),
    )


def _alerts(n_alerts: int) -> SafeString:
    if not n_alerts:
        return NOTHING
    verb = "is" if n_alerts == 1 else "are"
    count = formatting.counted(n_alerts, "alert")
    return format_html(' <b class="bad-text">{} {} open</b>.', count, verb)


def doing(run: Run) -> str:
    """Return what a run does, as the end of a sentence."""
    match run.phase:
        case Run.Phase.PENDING:
            return "is waiting for its nodes"
        case Run.Phase.COMPILING:
            done = f", {percent(run.phase_progress_ratio, 0)} done" if run.knows_progress else ""
            return f"is compiling{done}"
        case Run.Phase.FINISHED:
            return "has finished"
        case Run.Phase.FAILED:
            return "has failed"
    return "is warming up" if run.phase == Run.Phase.WARMING_UP else "is training"


def remaining_s(run: Run, *, now: datetime) -> float | None:
    """Return how long the phase takes yet, at the pace so far; None where nobody can tell."""
    done = run.phase_progress_ratio
    if run.phase not in (Run.Phase.COMPILING, Run.Phase.WARMING_UP) or not 0 < done <= 1:
        return None
    return (now - run.phase_since).total_seconds() * (1.0 - done) / done


def of_run(now: RunNow, *, at: datetime) -> SafeString:
    """Say how a run gets on, at what pace and price, and what it has cost."""
    return format_html("{} {}", _progress(now, at), _spent(now.run, at))


def _progress(now: RunNow, at: datetime) -> SafeString:
    run = now.run
    if run.phase in (Run.Phase.COMPILING, Run.Phase.WARMING_UP):
        return _getting_ready(run, at)
    if run.phase == Run.Phase.TRAINING:
        return _training(now, at)
    if run.finished_at is not None:
        return _over(run, run.finished_at, at)
    return format_html("<b>{}</b> {}.", run.name, doing(run))


def _over(run: Run, finished_at: datetime, at: datetime) -> SafeString:
    """Say that a run is over, since when, how long it took and how far it came."""
    steps = f" and {formatting.counted(run.last_step, 'step')}" if run.last_step else ""
    return format_html(
        "<b>{}</b> {} {} ago, after {}{}.",
        run.name,
        "finished" if run.phase == Run.Phase.FINISHED else "failed",
        duration(at - finished_at),
        duration(finished_at - run.started_at),
        steps,
    )


def _getting_ready(run: Run, at: datetime) -> SafeString:
    if run.is_reported:
        return _before_its_first_step(run, at)
    left_s = remaining_s(run, now=at)
    left = "" if left_s is None else f", about {duration(left_s)} left"
    word = "is compiling" if run.phase == Run.Phase.COMPILING else "is warming up"
    since = duration(at - run.phase_since)
    done = percent(run.phase_progress_ratio, 0)
    text = "<b>{}</b> {}: <b>{}</b> done after {}{}. Steps start after that."
    return format_html(text, run.name, word, done, since, left)


def _before_its_first_step(run: Run, at: datetime) -> SafeString:
    """Say how long a job has been without a step: it does not say how far it has come."""
    since = duration(at - run.phase_since)
    heard_s = (at - run.heard_at).total_seconds() if run.heard_at else 0.0
    quiet = f"; last report {duration(heard_s)} ago" if heard_s > QUIET_S else ""
    text = "<b>{}</b> has reported for <b>{}</b> without a step: it is compiling{}."
    return format_html(text, run.name, since, quiet)


def _training(now: RunNow, at: datetime) -> SafeString:
    if now.step_s is None:
        return format_html("<b>{}</b> is training, but no steps have been reported.", now.run.name)
    if now.is_stale and now.last_step_at_s is not None:
        age = duration(at.timestamp() - now.last_step_at_s)
        text = "<b>{}</b> has completed <b class='bad-text'>no step for {}</b>; the last took {}."
        return format_html(text, now.run.name, age, seconds(now.step_s))
    if now.share_ratio is None:
        text = "<b>{}</b> trains at <b>{}</b> per step. Its all-reduce share is not reported: {}"
        return format_html(text, now.run.name, seconds(now.step_s), _pace(now))
    share = percent(now.share_ratio)
    return format_html(
        "<b>{}</b> trains at <b>{}</b> per step, <b{}>{}</b> of it in all-reduce{}: {}",
        now.run.name,
        seconds(now.step_s),
        SafeString(' class="bad-text"') if now.is_over_limit else NOTHING,
        share,
        f", above its {percent(now.run.allreduce_limit_ratio, 0)} limit"
        if now.is_over_limit
        else "",
        _pace(now),
    )


def _pace(now: RunNow) -> SafeString:
    """Say how fast a run trains, as far as anybody counts."""
    if now.tokens_per_s is None:
        return SafeString("token counts are not reported.")
    if now.usd_per_mtok is None:
        return format_html("{} tokens/s.", si(now.tokens_per_s))
    per_mtok = usd(now.usd_per_mtok)
    return format_html("{} tokens/s at <b>{}</b> per 1M.", si(now.tokens_per_s), per_mtok)


def _spent(run: Run, at: datetime) -> SafeString:
    if math.isnan(run.usd_by(at)):
        return format_html("Its price is unknown. It started {}.", _day(run.started_at))
    return format_html("<b>{}</b> spent since {}.", usd(run.usd_by(at)), _day(run.started_at))


def _day(at: datetime) -> str:
    return f"{at:%-d} {at:%b %H:%M}"
