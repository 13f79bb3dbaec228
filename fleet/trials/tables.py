"""A trial's figures as rows: for a spreadsheet, and for the page's table of what arms took."""

import csv
import io
from collections.abc import Iterator

from fleet.trials.figures import ArmFigures, Figures
from fleet.trials.judgement import judged

COMPARED = (
    *("candidate", "run", "measure", "baseline", "value", "ratio"),
    *("low_95", "high_95", "word", "n_more_steps"),
)
TOOK = (
    *("arm", "run", "instance_type", "n_nodes", "n_steps", "n_settled", "n_warm_up"),
    *("tokens_per_step", "compile_s", "ready_s", "first_step_s", "warm_up_s"),
    *("first_epoch_step_s", "first_epoch_ratio", "time_to_train_s", "n_tokens", "n_lost"),
    *("settled_s", "settled_tokens", "price_basis"),
    *("usd_per_hour", "usd_ready", "usd_warm_up", "usd_settled", "usd_between", "usd"),
)
# What stands where no verdict follows: before why.
NO_WORD = "none: "
# A spreadsheet takes what begins with one of these for a formula.
FORMULAS = ("=", "+", "-", "@", "\t", "\r")


def written_csv(figures: Figures) -> str:
    """Write two tables, an empty line between: the comparisons, and what each arm took."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COMPARED)
    writer.writerows([_plain(cell) for cell in row] for row in _comparisons(figures))
    writer.writerow([])
    writer.writerow(TOOK)
    writer.writerows([_plain(cell) for cell in _took(arm)] for arm in figures.arms)
    return text.getvalue()


def _comparisons(figures: Figures) -> Iterator[list[object]]:
    for candidate in figures.candidates:
        judgement = judged(figures, candidate)
        for each in candidate.comparisons:
            why = judgement.no_word(each.measure)
            yield [
                *(candidate.label, candidate.run, each.measure, each.baseline, each.candidate),
                *(each.ratio, each.low, each.high),
                *((f"{NO_WORD}{why}", None) if why else (each.word, each.n_more_steps)),
            ]


def _took(arm: ArmFigures) -> list[object]:
    return [arm.label, *(getattr(arm, name) for name in TOOK[1:])]


def _plain(cell: object) -> object:
    """Return a cell that no spreadsheet computes; what is unknown is empty."""
    if not isinstance(cell, str):
        return "" if cell is None else cell
    # Spreadsheets that guess the encoding guess this sign wrong.
    text = cell.replace("\u00d7", "x")
    return f"'{text}" if text.startswith(FORMULAS) else text
