"""The benchmark of the sequential test, on a folder of two short series."""

from pathlib import Path

import numpy as np
import pytest

from bench import evidence


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(1)
    rows = ["name,label,config,k,hours"]
    for name, config in (("first", "a"), ("second", "b"), ("third", "c"), ("fourth", "d")):
        values = 10 * np.exp(0.002 * rng.standard_t(3, 700))
        lines = [f"{step},{value}" for step, value in enumerate(values)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["step,step_s", *lines]))
        rows.append(f"{name},healthy,{config},1,{values.sum() / 3600}")
    (tmp_path / "MANIFEST.csv").write_text("\n".join(rows))
    return tmp_path


def test_halves_are_disjoint_and_shifts_are_found(folder: Path) -> None:
    names = {half: {each.name for each in evidence.read(folder, half)} for half in evidence.HALVES}
    assert not names["develop"] & names["held-out"]
    assert len(names["develop"] | names["held-out"]) == 4

    figures = evidence.measure({}, folder=str(folder))

    assert figures["calm"]["healthy"]["false"] == figures["calm"]["healthy"]["changed"] == 0
    large = [row for row in figures["shifts"] if row["noise"] == "all" and row["shift"] >= 0.1]
    assert [row["noticed"] for row in large] == [1.0, 1.0]
    assert all(row["delay_ticks"] > row["bound_ticks"] for row in large)


def test_a_folder_without_series_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"--folder: .* holds no MANIFEST\.csv"):
        evidence.measure({}, folder=str(tmp_path))
