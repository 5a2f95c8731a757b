import pytest
import torch

from benchmarks import kalman as bench
from benchmarks import peers


def test_missing_peers_are_skipped_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    threads = torch.get_num_threads()
    result = bench.bench_kalman(smoke=True)
    assert torch.get_num_threads() == threads
    assert result["skipped"] == {name: bench.HINT for name in ("dynamax", "pyro")}
    short, long, smoothing = result["questions"].values()
    for likelihood in (short, long):
        assert set(likelihood["ratio"]) == {"motes", "naive"}
        assert likelihood["disagreement"]["naive"] < 1e-9
    assert set(smoothing["milliseconds"]) == {"motes"}


def test_a_wrong_answer_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda name: None)
    right = bench._likelihoods(5)
    wrong = lambda: [part * 1.001 for part in right["naive"]()]  # noqa: E731
    result = bench._judge(right | {"wrong": wrong}, 1)
    assert result["wrong"] == ["wrong"]
    assert "wrong" not in result["milliseconds"]
    with pytest.raises(RuntimeError, match="no contender agrees with motes"):
        bench._judge({"motes": right["motes"], "wrong": wrong}, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["dynamax", "pyro"])
def test_peers_give_our_answers(name: str) -> None:
    pytest.importorskip(name)
    model, positions = bench._problem(6)
    observed = torch.tensor([True, True, False, False, False, True])
    likelihood = getattr(peers, f"{name}_likelihood")(model, positions)
    smoother = getattr(peers, f"{name}_smoother")(model, positions, observed)
    ours = bench._ours(model, positions)()
    track = bench._our_smoother(model, positions, observed)()
    assert bench._difference(likelihood(), ours) < bench.TOLERANCE
    assert bench._difference(smoother(), track) < bench.TOLERANCE
