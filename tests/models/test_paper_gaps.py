import pytest
import torch

from motes.models.model import Model
from motes.models.protocols import GaussianPosterior
from motes.queries import interpolate
from paper_procedure import paper_posterior
from tiny import HEIGHT, MAX_OBJECTS, WIDTH, tiny_frames, tiny_model

MASKS = {
    "gap": [1, 1, 0, 0, 1, 0],
    "gaps": [0, 1, 0, 1, 0, 1],
    "late": [0, 0, 0, 1, 1, 1],
    "future": [1, 1, 0, 0, 0, 0],
}


@pytest.fixture(scope="module")
def model() -> Model:
    """In float64, so that two orders of the same sums agree to 1e-12."""
    return tiny_model().double()


def infer(
    model: Model, frames: torch.Tensor, observed: torch.Tensor, counts: torch.Tensor
) -> GaussianPosterior:
    q = model.infer(frames, counts, observed)
    assert isinstance(q, GaussianPosterior)
    assert q.observed is observed
    return q


def moments(q: GaussianPosterior) -> tuple[torch.Tensor, torch.Tensor]:
    return q.means, q.scales


def flags(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows).bool()


@torch.no_grad()
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("filling", [0.5, torch.nan, torch.inf])
def test_pixels_of_unobserved_frames_cannot_matter(name: str, filling: float, model: Model) -> None:
    frames, observed = tiny_frames(2, 6).double(), flags(MASKS[name], MASKS[name])
    counts = torch.tensor([2, 3])
    filled = torch.where(observed[:, :, None, None], frames, filling)
    plain, other = (infer(model, given, observed, counts) for given in (frames, filled))
    seen = observed[:, None].expand(-1, MAX_OBJECTS, -1)
    assert torch.equal(plain.means[seen], other.means[seen])
    assert torch.equal(plain.scales[seen], other.scales[seen])


@torch.no_grad()
def test_observed_pixels_matter(model: Model) -> None:
    frames, observed = tiny_frames(1, 6).double(), flags(MASKS["gap"])
    changed = frames.clone()
    changed[:, 1] = 1 - changed[:, 1]
    plain, other = (infer(model, given, observed, torch.tensor([2])) for given in (frames, changed))
    assert torch.equal(plain.means[:, :, 0], other.means[:, :, 0])
    assert (plain.means[:, :, 4] != other.means[:, :, 4]).all()  # across the gap


@torch.no_grad()
def test_without_a_gap_it_is_the_inference_network(model: Model) -> None:
    frames, counts = tiny_frames(2, 6).double(), torch.tensor([1, 3])
    for mask in ([1] * 6, [1, 1, 1, 0, 0, 0]):
        ours = infer(model, frames, flags(mask, mask), counts)
        for given, expected in zip(
            moments(ours), moments(model.inference(frames, counts)), strict=True
        ):
            assert torch.equal(given, expected)


@torch.no_grad()
def test_each_clip_has_its_own_mask(model: Model) -> None:
    frames, counts = tiny_frames(4, 6).double(), torch.tensor([1, 2, 3, 2])
    observed = flags(*MASKS.values())
    together = infer(model, frames, observed, counts)
    for b, mask in enumerate(observed):
        alone = infer(model, frames[b : b + 1], mask[None], counts[b : b + 1])
        for ours, theirs in zip(moments(together), moments(alone), strict=True):
            torch.testing.assert_close(ours[b, :, mask], theirs[0, :, mask], rtol=1e-10, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 3])
def test_across_a_gap_it_is_the_procedure_of_the_paper(
    count: int, generator: torch.Generator
) -> None:
    model = tiny_model().double()
    frames = tiny_frames(1, 30).double()
    # The prior prefers a start far from what is seen: the seen frames must overrule it.
    seen = model.inference(frames, torch.tensor([count])).means[0, 0, :5].mean(0)
    model.dynamics.initial_mean[:, :2] = torch.stack([seen + 6, seen])
    model.dynamics.logits.copy_(torch.tensor([1.0, 0.0]))
    observed = flags([1] * 5 + [0] * 20 + [1] * 5)
    frames[:, 5:25] = torch.rand(20, HEIGHT, WIDTH, dtype=torch.float64, generator=generator)
    ours = infer(model, frames, observed, torch.tensor([count]))
    theirs = paper_posterior(model, frames, 5, 5, count)
    for given, expected in zip(moments(ours), moments(theirs), strict=True):
        # A contracting recurrence in float64, its input from covariances of condition below 1e4.
        torch.testing.assert_close(given[:, :count], expected[:, :count], rtol=1e-9, atol=1e-10)


@torch.no_grad()
def test_another_pass_reads_the_frames_that_the_smoothed_tracks_expect(model: Model) -> None:
    frames, counts = tiny_frames(2, 6).double(), torch.tensor([2, 3])
    observed = flags(MASKS["gap"], MASKS["gap"])
    again = tiny_model().double()
    again.inference.gap_passes = 2
    first, second = infer(model, frames, observed, counts), infer(again, frames, observed, counts)
    expected = interpolate(tiny_model(), frames.float(), observed, counts).positions
    for b, count in enumerate(counts.tolist()):
        present = torch.arange(MAX_OBJECTS)[None] < count
        drawn = model.renderer(expected[b : b + 1].double(), present).sigmoid()
        filled = torch.where(observed[b, :, None, None], frames[b], drawn[0])
        theirs = model.inference(filled[None], counts[b : b + 1])
        # The answer's positions are of a float32 network, with errors of about 1e-6.
        torch.testing.assert_close(
            second.means[b, :count], theirs.means[0, :count], rtol=1e-4, atol=1e-4
        )
    before = slice(0, 2)  # frames before the gap are read as before
    torch.testing.assert_close(second.means[:, :, before], first.means[:, :, before])
    assert (second.means[:, :, 4] != first.means[:, :, 4]).all()


@torch.no_grad()
def test_hidden_pixels_cannot_matter_in_another_pass() -> None:
    model = tiny_model().double()
    model.inference.gap_passes = 3
    frames, observed = tiny_frames(2, 6).double(), flags(MASKS["gap"], MASKS["gaps"])
    filled = torch.where(observed[:, :, None, None], frames, torch.nan)
    counts = torch.tensor([2, 3])
    plain, other = (infer(model, given, observed, counts) for given in (frames, filled))
    assert torch.equal(plain.means, other.means)
