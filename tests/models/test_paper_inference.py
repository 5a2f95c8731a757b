import ast
import inspect
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from motes.core.errors import InputError
from motes.models.paper import InferenceNetwork, PaperRenderer, paper_init, recur
from motes.models.protocols import GaussianPosterior
from tests.reference import naive

# In float64 a state is reached through at most T + N < 16 cells, each a sum of fewer than 100
# products of order one, and a weight's gradient is a sum over fewer than 100 cells: rounding stays
# below 16 * 100 * 100 * 1e-16 < 1e-10. A wrong index or a missing term is an error of order 1e-2.
TOLERANCE = {"rtol": 1e-9, "atol": 1e-10}
FLOOR, START = 0.01, 0.3


def network_of(image_size, max_objects, state_size, seed):
    """A network in float64 whose every parameter is off its special starting value."""
    generator = torch.Generator().manual_seed(seed)
    network = InferenceNetwork(image_size, max_objects, state_size, FLOOR, START, generator)
    network.double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += 0.3 * torch.randn(
                parameter.shape, generator=generator, dtype=torch.float64
            )
    return network, generator


def clips_of(num_clips, num_frames, image_size, max_objects, generator):
    shape = (num_clips, num_frames, *image_size)
    frames = torch.rand(shape, generator=generator, dtype=torch.float64)
    return frames, torch.randint(1, max_objects + 1, (num_clips,), generator=generator)


@settings(max_examples=25, deadline=None)
@given(
    num_clips=st.integers(1, 4),
    num_frames=st.integers(1, 5),
    max_objects=st.integers(1, 4),
    state_size=st.integers(1, 6),
    seed=st.integers(0, 2**16),
)
def test_fast_order_equals_the_naive_loop(num_clips, num_frames, max_objects, state_size, seed):
    network, generator = network_of((2, 3), max_objects, state_size, seed)
    frames, num_objects = clips_of(num_clips, num_frames, (2, 3), max_objects, generator)
    weights = naive.inference_weights(network)
    ours = network(frames, num_objects)
    theirs = naive.encode(weights, frames, num_objects, FLOOR)
    moments = [(q.means, q.scales) for q in (ours, theirs)]
    torch.testing.assert_close(*moments, **TOLERANCE)

    cotangents = [
        torch.randn(ours.means.shape, generator=generator, dtype=torch.float64) for _ in range(2)
    ]
    parameters = list(network.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(moments[0], parameters, cotangents),
        torch.autograd.grad(moments[1], parameters, cotangents),
        **TOLERANCE,
    )


@pytest.mark.parametrize(("num_objects", "num_frames"), [(3, 4), (1, 3), (3, 1), (1, 1), (2, 5)])
def test_recurrence_passes_gradcheck(num_objects, num_frames, generator):
    B, S = 2, 3
    shapes = [(num_objects, B, S), (num_frames, B, 2 * S), (S, 2 * S), (S, 2 * S)]
    inputs = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    assert torch.autograd.gradcheck(recur, [x.requires_grad_() for x in inputs])


def test_recurrence_can_be_differentiated_twice_from_one_forward(generator):
    """What the backward pass reads must not be what it writes."""
    shapes = [(2, 2, 3), (4, 2, 6), (3, 6), (3, 6)]
    inputs = [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]
    total = recur(*inputs).square().sum()
    first = torch.autograd.grad(total, inputs, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(total, inputs), first, rtol=0, atol=0)


@pytest.mark.parametrize("chunk_frames", [1, 4, 6])
def test_forward_equals_steps(chunk_frames: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("motes.models.paper.CHUNK_FRAMES", chunk_frames)
    network, generator = network_of((3, 2), 3, 5, seed=1)
    frames, num_objects = clips_of(4, 6, (3, 2), 3, generator)
    states, means, scales = network.initial_states(num_objects), [], []
    for frame in frames.unbind(1):
        states = network.step(states, frame)
        mean, scale = network.read_out(states)
        means.append(mean)
        scales.append(scale)
    encoding = network(frames, num_objects)
    torch.testing.assert_close(encoding.means, torch.stack(means, dim=2), **TOLERANCE)
    torch.testing.assert_close(encoding.scales, torch.stack(scales, dim=2), **TOLERANCE)


def test_later_frames_and_objects_cannot_matter():
    """The gradient of cell (n, t) reaches no frame after t and no initial state after n."""
    network, generator = network_of((2, 2), 3, 4, seed=2)
    frames, num_objects = clips_of(1, 4, (2, 2), 3, generator)
    frames.requires_grad_()
    means = network(frames, num_objects).means
    for n in range(3):
        for t in range(4):
            to_frames, to_initial = torch.autograd.grad(
                means[0, n, t].sum(), [frames, network.initial], retain_graph=True
            )
            seen = to_frames[0].flatten(1).abs().sum(1) > 0
            used = to_initial[num_objects[0] - 1].abs().sum(1) > 0
            assert seen.tolist() == [i <= t for i in range(4)]
            assert used.tolist() == [i <= n for i in range(3)]


def test_clips_of_a_batch_do_not_touch_one_another():
    network, generator = network_of((3, 3), 3, 4, seed=3)
    frames, num_objects = clips_of(4, 5, (3, 3), 3, generator)
    together = network(frames, num_objects)
    for b in range(4):
        alone = network(frames[b : b + 1], num_objects[b : b + 1])
        torch.testing.assert_close(alone.means[0], together.means[b], **TOLERANCE)
        torch.testing.assert_close(alone.scales[0], together.scales[b], **TOLERANCE)


def test_initial_states_are_separate_for_each_number_of_objects():
    network, _ = network_of((2, 2), 3, 4, seed=4)
    states = network.initial_states(torch.tensor([1, 2, 3, 2]))
    assert torch.equal(states[1], states[3])
    assert torch.equal(states[2], network.initial[2].tanh())
    assert not torch.equal(states[0], states[1])


def test_every_parameter_receives_a_gradient():
    network, generator = network_of((2, 2), 3, 4, seed=5)
    frames, _ = clips_of(3, 4, (2, 2), 3, generator)
    q = network(frames, torch.tensor([1, 2, 3]))
    (q.means.sum() + q.scales.sum()).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad != 0).all(), name


def test_paper_init_has_variance_one_over_root_d(generator):
    rows, columns = 300, 500
    draws = paper_init((rows, columns), generator).double()
    # The mean square of d Gaussian draws has a relative standard error of sqrt(2 / d); five of
    # them are 1.8 per cent. Read as a standard deviation instead, it would be 400 times smaller.
    d = rows * columns
    assert draws.square().mean().item() * math.sqrt(d) == pytest.approx(1, abs=5 * math.sqrt(2 / d))


def test_each_gate_counts_its_whole_matrix(generator):
    """W acts on [s_{t-1}^n, s_t^{n-1}, v_t] as one matrix, so its three blocks share a variance."""
    S, image_size = 64, (20, 30)
    network = InferenceNetwork(image_size, 2, S, FLOOR, START, generator)
    d = S * (2 * S + math.prod(image_size))
    for block in (network.from_past, network.from_below, network.from_image):
        for gate in block.chunk(2, dim=1):
            error = 5 * math.sqrt(2 / gate.numel())  # five standard errors of a mean square
            assert gate.square().mean().item() * math.sqrt(d) == pytest.approx(1, abs=error)


def test_a_zero_state_has_the_initial_scale(generator):
    network = InferenceNetwork((2, 2), 2, 4, FLOOR, START, generator)
    mean, scale = network.read_out(torch.zeros(3, 4))
    assert torch.equal(mean, torch.zeros(3, 2))
    torch.testing.assert_close(scale, torch.full((3, 2), START))


def test_scales_stay_above_their_floor(generator):
    network = InferenceNetwork((2, 2), 2, 4, FLOOR, START, generator)
    _, scale = network.read_out(1e4 * torch.randn(50, 4, generator=generator))
    assert (scale >= FLOOR).all()
    assert (scale == FLOOR).any()  # the floor was reached, so it was tested


@pytest.mark.parametrize(("floor", "start"), [(0.3, 0.3), (0.5, 0.1), (-1.0, 0.1)])
def test_scales_that_contradict_are_refused(floor, start, generator):
    with pytest.raises(InputError, match=f"got initial_scale {start} and scale_floor {floor}"):
        InferenceNetwork((2, 2), 2, 4, floor, start, generator)


@pytest.mark.parametrize("count", [0, 4])
def test_counts_that_the_network_does_not_know_are_refused(count, generator):
    network = InferenceNetwork((2, 2), 3, 4, FLOOR, START, generator)
    with pytest.raises((IndexError, RuntimeError)):
        network.initial_states(torch.tensor([count]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_graph_equals_the_cpu():
    network, generator = network_of((4, 4), 3, 8, seed=6)
    frames, num_objects = clips_of(5, 6, (4, 4), 3, generator)
    here = network(frames, num_objects)
    expected = torch.autograd.grad(here.means.sum() + here.scales.sum(), network.parameters())

    there = network.cuda()
    frames, num_objects = frames.cuda(), num_objects.cuda()

    def gradients():
        found = there(frames, num_objects)
        return torch.autograd.grad(found.means.sum() + found.scales.sum(), there.parameters())

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        gradients()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = gradients()
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close([g.cpu() for g in captured], list(expected), **TOLERANCE)


def test_q_has_the_moments_the_density_and_the_entropy_of_its_gaussians():
    generator = torch.Generator().manual_seed(0)
    means, noise = torch.randn(2, 1, 2, 3, 2, generator=generator, dtype=torch.float64)
    q = GaussianPosterior(means, noise.abs() + 0.1)
    each = torch.distributions.Normal(q.means, q.scales)
    torch.testing.assert_close(q.entropy(), each.entropy().sum(-1))
    torch.testing.assert_close(each.cdf(q.draw(noise)), torch.special.ndtr(noise))
    torch.testing.assert_close(q.log_density(noise), each.log_prob(q.draw(noise)).sum(-1))
    for index in itertools.product(range(1), range(2), range(3)):
        x, y = q.scales[index].tolist()
        assert q.covariances()[index].tolist() == [[x**2, 0.0], [0.0, y**2]]


def test_the_renderer_and_the_inference_network_do_not_refer_to_each_other():
    names = {
        cls: {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        for cls in (InferenceNetwork, PaperRenderer)
        for tree in [ast.parse(inspect.getsource(cls))]
    }
    assert "PaperRenderer" not in names[InferenceNetwork]
    assert "InferenceNetwork" not in names[PaperRenderer]
