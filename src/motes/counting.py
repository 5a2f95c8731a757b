"""How many objects a clip holds: the bound for every count that the model was trained with."""

import torch

from motes.encoding import encode
from motes.model import Model
from motes.objective import terms_of
from motes.shapes import Bool, Float, Tensor

NUM_DRAWS = 8


def count_log_evidence(
    model: Model, frames: Float[Tensor, "B T height width *channels"], observed: Bool[Tensor, "B T"]
) -> Float[Tensor, "B Nmax"]:
    """The bound on log p(seen frames | n objects) for n = 1..Nmax, one column each, in nats.

    With every count equally likely beforehand, its softmax is the probability of each count.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (NUM_DRAWS, len(frames), model.max_objects, frames.shape[1], 2)
    draws = torch.randn(shape, generator=generator).to(model.device)
    columns = []
    for count in range(1, model.max_objects + 1):
        counts = torch.full((len(frames),), count, device=model.device)
        q = encode(model, frames, observed, counts)
        bounds = [
            terms_of(model, q, frames, counts, noise, observed).weighted(1.0) for noise in draws
        ]
        columns.append(torch.stack(bounds).mean(0))
    return torch.stack(columns, 1)
