"""What each measure of a trial is, in a line: for whoever asks what a figure means."""

from collections.abc import Iterable, Mapping

from fleet.efforts import peak_flops
from fleet.models import Run, Trial
from fleet.templatetags.units import NBSP, si
from fleet.trials.measures import BY_NAME

EXPLAINED: Mapping[str, str] = {
    "usd_per_mtok": "dollars of the settled steps, each second at the price that held then, over "
    "their tokens",
    "usd_per_epoch": "the same for the tokens of one pass over the data",
    "tokens_per_usd": "its inverse, price-performance: what AWS's claim speaks of",
    "tokens_per_s": "tokens of the settled steps over their seconds",
    "time_to_train_s": "until the first step, warm-up, and the rest of the {planned} planned "
    "tokens at the settled pace; no failures and no pauses",
    "first_epoch_step_s": "the mean step of the first pass over the data, its warm-up included",
    "step_s": "the mean settled step, checkpoints and evaluations included",
    "heavy_step_s": "the same of the quarter of each hour's steps with the largest all-reduce "
    "share",
    "allreduce_share_ratio": "waiting and transferring that no computing hides, over step time",
    "mfu_ratio": "the model's FLOPs over the dense peak of all chips{peaks}",
    "loss": "the mean over the last twentieth of the tokens that both arms have trained on; what "
    "was trained again after a failure counts once",
}
ONCE = {
    "compile time": "seconds in which any process compiled, before and amid training",
    "until the first step": "from the run's start, compiling included",
}


def explained(trial: Trial, runs: Iterable[Run], measures: Iterable[str]) -> list[tuple[str, str]]:
    """Return the words for measures, and those for what happens once, each with what it is."""
    filled = {"planned": f"{trial.planned_tokens or 0:,}", "peaks": _peaks(runs)}
    told = [(BY_NAME[name].words, EXPLAINED[name].format(**filled)) for name in measures]
    return [*told, *ONCE.items()]


def _peaks(runs: Iterable[Run]) -> str:
    """Return the peaks that MFU is reckoned by, run by run; nothing where none is known."""
    known = {
        f"{run.n_nodes} \u00d7 {run.instance_type}: {si(peak)}FLOP/s".replace(" ", NBSP, 2)
        for run in runs
        if (peak := peak_flops(run))
    }
    return f" ({', '.join(sorted(known))})" if known else ""
