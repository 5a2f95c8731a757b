import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from motes.models.paper import PaperRenderer
from tests.reference import naive

# Float64, sums of fewer than 100 products of order one through fewer than 10 dependent steps:
# rounding stays below 1e-12; a wrong index or a missing term is an error of order 1e-2.
TOLERANCE = {"rtol": 1e-10, "atol": 1e-11}


def renderer_of(image_size, state_size, seed):
    """A renderer in float64 whose every parameter is off its special starting value."""
    generator = torch.Generator().manual_seed(seed)
    renderer = PaperRenderer(image_size, state_size, generator).double()
    with torch.no_grad():
        for parameter in renderer.parameters():
            parameter += 0.3 * torch.randn(
                parameter.shape, generator=generator, dtype=torch.float64
            )
    return renderer, generator


def scene_of(num_clips, num_objects, num_frames, generator):
    shape = (num_clips, num_objects, num_frames, 2)
    positions = torch.randn(shape, generator=generator, dtype=torch.float64)
    return positions, torch.rand(num_clips, num_objects, generator=generator) < 0.7


@settings(max_examples=25, deadline=None)
@given(
    num_clips=st.integers(1, 3),
    num_objects=st.integers(1, 4),
    num_frames=st.integers(1, 4),
    state_size=st.integers(1, 6),
    seed=st.integers(0, 2**16),
)
def test_renderer_equals_the_naive_loop(num_clips, num_objects, num_frames, state_size, seed):
    renderer, generator = renderer_of((2, 3), state_size, seed)
    positions, present = scene_of(num_clips, num_objects, num_frames, generator)
    positions.requires_grad_()
    ours = renderer(positions, present)
    theirs = naive.render(naive.renderer_weights(renderer), positions, present)
    theirs = theirs.unflatten(-1, (2, 3))
    torch.testing.assert_close(ours, theirs, **TOLERANCE)

    cotangent = torch.randn(ours.shape, generator=generator, dtype=torch.float64)
    inputs = [positions, *renderer.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(ours, inputs, cotangent),
        torch.autograd.grad(theirs, inputs, cotangent),
        **TOLERANCE,
    )


@pytest.mark.parametrize("filler", [float("nan"), float("inf"), 1e30])
def test_absent_objects_cannot_matter(filler):
    renderer, generator = renderer_of((3, 2), 5, seed=1)
    positions, _ = scene_of(2, 3, 4, generator)
    present = torch.tensor([[True, False, True], [False, False, True]])
    without = renderer(positions, present)
    filled = positions.masked_fill(~present[:, :, None, None], filler).requires_grad_()
    logits = renderer(filled, present)
    assert torch.equal(logits, without)

    inputs = [filled, *renderer.parameters()]
    gradients = torch.autograd.grad(logits.square().sum(), inputs)
    expected = torch.autograd.grad(without.square().sum(), inputs[1:])
    assert (gradients[0][~present] == 0).all()
    assert gradients[0].isfinite().all()
    assert all(torch.equal(g, e) for g, e in zip(gradients[1:], expected, strict=True))


def test_absent_objects_equal_a_scene_without_them():
    renderer, generator = renderer_of((3, 2), 5, seed=2)
    positions, _ = scene_of(1, 3, 4, generator)
    some = renderer(positions, torch.tensor([[True, False, True]]))
    fewer = renderer(positions[:, [0, 2]], torch.ones(1, 2, dtype=torch.bool))
    torch.testing.assert_close(some, fewer, **TOLERANCE)


def test_a_scene_without_objects_is_the_empty_canvas():
    renderer, generator = renderer_of((3, 2), 5, seed=3)
    positions, _ = scene_of(1, 2, 3, generator)
    logits = renderer(positions, torch.zeros(1, 2, dtype=torch.bool))
    canvas = renderer.empty_canvas.tanh() @ renderer.to_image + renderer.image_bias
    torch.testing.assert_close(logits, canvas.view(1, 1, 3, 2).expand(1, 3, 3, 2), **TOLERANCE)


def test_frames_do_not_touch_one_another():
    renderer, generator = renderer_of((3, 2), 5, seed=4)
    positions, present = scene_of(2, 3, 4, generator)
    together = renderer(positions, present)
    for t in range(4):
        alone = renderer(positions[:, :, t : t + 1], present)
        torch.testing.assert_close(alone[:, 0], together[:, t], **TOLERANCE)


def test_every_parameter_receives_a_gradient():
    renderer, generator = renderer_of((3, 2), 5, seed=5)
    positions, _ = scene_of(2, 3, 4, generator)
    renderer(positions, torch.ones(2, 3, dtype=torch.bool)).square().sum().backward()
    for name, parameter in renderer.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad != 0).all(), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_equals_the_cpu():
    renderer, generator = renderer_of((4, 4), 8, seed=6)
    positions, present = scene_of(3, 3, 5, generator)
    here = renderer(positions, present)
    there = renderer.cuda()(positions.cuda(), present.cuda())
    torch.testing.assert_close(there.cpu(), here, **TOLERANCE)
