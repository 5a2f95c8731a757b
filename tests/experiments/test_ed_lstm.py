"""The paper's recurrent baseline."""

import pytest
import torch

from experiments.ed_lstm.ed_lstm import EDLSTM, Layers, Recurrent, loss
from motes.core.errors import InputError

KINDS: tuple[Layers, ...] = ("one", "two", "convolutional")


def network(layers: Layers = "one", generator: torch.Generator | None = None) -> EDLSTM:
    return EDLSTM((8, 16), 16, layers, generator or torch.Generator().manual_seed(0))


def frames(num_clips: int = 3, num_frames: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return (torch.rand(num_clips, num_frames, 8, 16, generator=generator) < 0.2).float()


@pytest.mark.parametrize("layers", KINDS)
def test_generation_without_a_future_is_training(layers: Layers):
    clip = frames()
    told, ahead = network(layers)(clip), network(layers).generate(clip[:, :-1], 1)
    torch.testing.assert_close(ahead, told)


@pytest.mark.parametrize("layers", KINDS)
def test_a_prediction_sees_earlier_frames_only(layers: Layers):
    clip = frames()
    changed = clip.clone()
    changed[:, 3:] = 1 - changed[:, 3:]
    first, second = network(layers)(clip), network(layers)(changed)
    torch.testing.assert_close(first[:, :4], second[:, :4])
    assert not torch.equal(first[:, 4:], second[:, 4:])


def test_its_own_frames_are_fed_after_the_seen_ones():
    net, seen = network(), frames()[:, :2]
    whole = net.generate(seen, 3).sigmoid()
    own = torch.cat([seen, whole[:, 2:4]], 1)
    torch.testing.assert_close(net.generate(own, 1), whole.logit(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layers", KINDS)
@pytest.mark.parametrize("num_seen", [None, 2])
def test_it_learns_a_batch_by_heart(layers: Layers, num_seen: int | None):
    net, clip = network(layers), frames(2, 4)
    adam = torch.optim.Adam(net.parameters(), lr=1e-2)
    before = loss(net, clip, num_seen).item()
    for _ in range(120):
        adam.zero_grad()
        loss(net, clip, num_seen).backward()
        adam.step()
    # A fifth of the pixels is white: no constant picture gets below 0.5 nats.
    assert before > 0.6
    assert loss(net, clip, num_seen).item() < 0.4


def test_as_a_contender_it_tells_frames_ahead_and_nothing_else():
    contender, seen = Recurrent(network()), torch.arange(6) < 2
    told = contender.predict(frames(), seen, 2)
    assert told.pixels is None
    assert told.draw_frames is not None
    torch.testing.assert_close(
        told.draw_frames(), network().generate(frames()[:, :2], 4).sigmoid().detach()
    )
    assert contender.predict(frames(), seen | True, 2).draw_frames is None


def test_weights_start_with_the_papers_variance_and_biases_at_zero():
    net = EDLSTM((16, 16), 64, "one", torch.Generator().manual_seed(0))
    weights = net.lstm.weight_hh_l0
    variance = weights.numel() ** -0.5
    # The variance of n Gaussian draws: relative standard error sqrt(2 / n).
    assert abs(weights.var().item() / variance - 1) < 5 * (2 / weights.numel()) ** 0.5
    assert not net.lstm.bias_ih_l0.any()


def test_frames_that_cannot_be_halved_thrice_are_refused():
    with pytest.raises(InputError, match="multiples of 8"):
        EDLSTM((10, 16), 6, "convolutional", torch.Generator())


@pytest.mark.parametrize("layers", KINDS)
def test_it_can_begin_with_a_share_of_white_pixels(layers: Layers):
    net = network(layers)
    net.begin_with(0.01)
    with torch.no_grad():
        for weights in net.decode.parameters():
            if weights.ndim > 1:
                weights.zero_()
    torch.testing.assert_close(net(frames()).sigmoid(), torch.full((3, 6, 8, 16), 0.01))
