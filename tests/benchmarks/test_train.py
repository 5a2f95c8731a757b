import pytest
import torch

from benchmarks import train, train_gpu


def test_both_steps_agree_and_are_timed():
    threads = torch.get_num_threads()
    result = train.bench_train(smoke=True)
    assert result["disagreement"] < train.TOLERANCE
    times = result["milliseconds"]
    assert result["ratio"]["min"] == times["naive"]["min"] / times["motes"]["min"]
    assert all(
        0 < piece["min"] <= piece["median"] for piece in result["split_milliseconds"].values()
    )
    assert torch.get_num_threads() == threads


def test_no_time_counts_when_the_steps_disagree(monkeypatch):
    render = train.naive.render
    monkeypatch.setattr(train.naive, "render", lambda *inputs: 1.01 * render(*inputs))
    with pytest.raises(RuntimeError, match="the two steps differ by"):
        train.bench_train(smoke=True)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_gpu_steps_agree_and_are_timed():
    result = train_gpu.bench_train_gpu(smoke=True)
    assert result["agrees"], result["disagreement"]
    times = [*result["milliseconds"].values(), *result["split_milliseconds"].values()]
    assert all(0 < piece["min"] <= piece["median"] for piece in times)
