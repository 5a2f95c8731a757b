"""Forecasts on many clips: the scores of evaluate, with errors of the difference from the limit."""

import math

import pytest
import torch

from experiments.sprites_seeds import score_large
from experiments.sprites_seeds.score_large import compared, merge, score_and_shares
from experiments.sprites_seeds.tables import large_table
from motes.core.files import write_json
from motes.data import World, cannonballs
from motes.evaluation.baselines.bayes_limit import BayesLimit
from motes.evaluation.evaluate import evaluate
from motes.evaluation.metrics import ClipStatistics, standard_error


def tallied(totals, counts, root):
    return {"totals": totals.tolist(), "counts": counts.tolist(), "root": root}


def found_of(values):
    """What was found of clips whose squared errors are given, for one number of objects."""
    part = tallied(values, torch.ones_like(values), root=True)
    return {"1": dict.fromkeys(score_large.SCORES, part)}


def test_scores_are_those_of_evaluate(monkeypatch):
    monkeypatch.setattr(score_large, "PART", 20)
    contender = BayesLimit.of(World(12, (24, 24)))
    found = score_large.ask(contender, 24, 12, 40)
    clips = [cannonballs(20, (1, 2, 3), 12, (24, 24), seed=5_000_000 + k) for k in range(2)]
    parts = [evaluate(contender, some)["by_count"] for some in clips]
    for count, its in compared(found, found).items():
        columns = [part[count] for part in parts]
        total = sum(c["clips"] for c in columns)
        mean = sum(c["clips"] * c["forecast_rmse"] ** 2 for c in columns) / total
        assert its["clips"] == total
        # sums are stored to six decimals
        assert its["forecast_rmse"]["value"] == pytest.approx(math.sqrt(mean), abs=1e-6)


@pytest.mark.parametrize("root", [False, True])
def test_the_error_is_that_of_drawing_clips_again(root):
    generator = torch.Generator().manual_seed(0)
    totals = torch.rand(2000, generator=generator, dtype=torch.float64)
    counts = torch.ones(2000, dtype=torch.float64)
    _, shares = score_and_shares(tallied(totals, counts, root))
    # 500 resamples tell a deviation to 1 / sqrt(1000), 3 %; four times that
    expected = float(standard_error(ClipStatistics(totals, counts, root)))
    assert float(shares.norm()) == pytest.approx(expected, rel=0.13)


def test_the_error_of_a_difference_is_small_where_clips_are_hard_for_both():
    hard = torch.linspace(1, 9, 400, dtype=torch.float64)
    scores = compared(found_of(hard * 1.1), found_of(hard))["1"]["forecast_rmse"]
    root_mean = math.sqrt(5)
    assert scores["above_limit"] == pytest.approx(root_mean * (math.sqrt(1.1) - 1), rel=1e-6)
    # both move together: the difference moves by sqrt(1.1) - 1 of what the limit moves by
    share = (math.sqrt(1.1) - 1) / math.sqrt(1.1)
    assert scores["error_above_limit"] == pytest.approx(share * scores["error"], rel=1e-6)


def test_records_become_rows_beside_the_limit(tmp_path):
    place = {"motes_commit": "0" * 40, "processor": "a processor"}
    kind = {"size": 48, "num_frames": 30, "environment": place}
    values = torch.linspace(1, 9, 50, dtype=torch.float64)
    for seed, factor in ((None, 1.0), (0, 1.21), (1, 1.44)):
        found = {count: found_of(factor * values)["1"] for count in ("1", "2", "3")}
        learned = {} if seed is None else {"learned": place}
        write_json(tmp_path / f"{seed}.json", {**kind, "seed": seed, **learned, "found": found})
    record = merge(tmp_path)
    assert all("found" not in run for run in record["runs"])  # sums of clips are for merging
    rows = large_table(record).splitlines()
    # sqrt(5) = 2.236; a tenth and two tenths more are 0.224 and 0.447
    assert "| 48x48, T = 30, 2 seeds, 50 clips | 2 | 2.236 ±" in rows[3]
    assert "| 2.460-2.683 | +0.224 to +0.447 (±" in rows[3]
    # the goals are 2.25 / 2.27 / 2.40
    assert "are missed by 0, 1." in rows[-1]
