"""Devices are checked, and threads are chosen by the work."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import motes
from motes.core.device import THREADS, check_device, limited_threads, num_threads
from motes.queries.validation import check_whole
from tests.tiny import tiny_model


@pytest.fixture
def four_threads(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(THREADS, raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda")])
def test_a_gpu_that_is_not_there_is_named_in_one_line(device) -> None:
    with pytest.raises(motes.InputError, match=r"device is cuda.*no GPU here; use cpu$"):
        motes.load("cannonballs-48", device=device)


def test_other_devices_are_refused_by_name() -> None:
    assert check_device("cpu") == torch.device("cpu")
    with pytest.raises(motes.InputError, match="device is 'gpu'; give cpu or cuda"):
        check_device("gpu")


@pytest.mark.parametrize(("clips", "threads"), [(1, 1), (63, 1), (64, 2), (1_000, 4)])
def test_a_thread_has_enough_clips(clips: int, threads: int, four_threads) -> None:
    assert num_threads(clips, 32) == threads


def test_threads_are_chosen_by_the_work_and_restored(four_threads) -> None:
    with limited_threads(1, 32):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 4
    with pytest.raises(KeyError), limited_threads(1, 32):
        raise KeyError
    assert torch.get_num_threads() == 4


def test_the_environment_overrides_the_choice(
    four_threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(THREADS, "3")
    with limited_threads(1, 32):
        assert torch.get_num_threads() == 3
    monkeypatch.setenv(THREADS, "0")
    with pytest.raises(motes.InputError, match="MOTES_THREADS is '0'"):
        num_threads(1, 32)


def test_queries_use_the_chosen_threads_and_leave_the_caller_its_own(
    four_threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, used = tiny_model(), []
    infer = type(model).infer

    def spy(self, *given, **options):
        used.append(torch.get_num_threads())
        return infer(self, *given, **options)

    monkeypatch.setattr(type(model), "infer", spy)
    monkeypatch.setattr(type(model.inference), "clips_per_thread", 2)
    for num_clips in (1, 3, 6, 20):
        motes.infer(model, torch.zeros(num_clips, 4, *model.image_size), 1)
    assert used == [1, 1, 3, 4]
    assert torch.get_num_threads() == 4


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    model = tiny_model()
    frames = torch.zeros(1, 4, *model.image_size)
    ours = motes.forecast(model, frames, np.int64(1), np.int64(3), seed=np.int32(5))
    assert torch.equal(ours.pixels, motes.forecast(model, frames, 1, 3, seed=5).pixels)
    for wrong in (3.0, np.float64(3), True, "3", None, 0, np.int64(6)):
        with pytest.raises(motes.InputError, match=r"horizon is .*give a whole number from 1 to 5"):
            check_whole("horizon", wrong, 1, 5)


def test_optimizers_do_not_import_a_compiler() -> None:
    code = """
import sys, torch
from motes.core.device import optimize_uncompiled
from motes.training.step import Adam
optimize_uncompiled()
part = torch.nn.Parameter(torch.ones(3))
for make in (Adam, torch.optim.LBFGS):
    optimizer = make([part])
    def loss():
        optimizer.zero_grad()
        value = part.square().sum()
        value.backward()
        return value
    optimizer.step(loss)
    optimizer.load_state_dict(optimizer.state_dict())
assert "torch._dynamo" not in sys.modules
assert part.detach().abs().max() < 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)
