import torch

from motes.data import cannonballs
from motes.models.checkpoint import load
from motes.queries import infer


def test_an_answer_on_the_cpu_is_not_copied() -> None:
    answer = infer(load("cannonballs-structured"), cannonballs(1, 1, 6).frames, 1)
    assert answer.cpu() is answer
    assert all(part.device.type == "cpu" for part in vars(answer).values() if torch.is_tensor(part))
