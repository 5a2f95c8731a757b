import numpy as np
import pytest

from experiments.long_clips import hours


@pytest.mark.parametrize("images", [False, True])
def test_a_short_recording_is_tracked_without_switches(tmp_path, images):
    found = hours.measure(150, 2, tmp_path, images, kills=False)
    assert (found["frames"], found["switches"], found["rows_missing"]) == (150, 0, 0)
    assert found["near"] == 1.0
    assert found["rmse_px"] < 1.0


def test_switches_are_counted(tmp_path):
    truth, table = hours.places(6, 2), tmp_path / "table.csv"
    lines = ["frame,particle,x,y"]
    for t, now in enumerate(truth):
        order = (0, 1) if t < 3 else (1, 0)
        lines += [f"{t},{n},{now[m, 0]},{now[m, 1]}" for n, m in enumerate(order)]
    table.write_text("\n".join(lines))
    assert hours.scores(table, truth)["switches"] == 2
    assert np.isclose(hours.scores(table, truth)["rmse_px"], 0)
