"""The paper's recurrent opponent: encoder, LSTM, decoder (its Sec. 3.4 and figure)."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from motes.core.axes import Bool, Float, Tensor
from motes.core.errors import InputError
from motes.evaluation.predictor import Prediction
from motes.models.paper import paper_init

Layers = Literal["one", "two", "convolutional"]
HIDDEN = 1024  # elements of a code of a frame, and of the hidden layer of two
CHANNELS = (32, 64, 64)  # of the convolutions, each of which halves the frame


class EDLSTM(nn.Module):
    """Predicts each frame from those before it.

        s_t = LSTM(s_{t-1}, encode(v_{t-1})),  p(v_t is white) = sigm(decode(s_t))

    The first frame is predicted from a black one. Weights start as those of the paper's model.
    All layers but the last of the encoder and of the decoder are followed by a ReLU.

    Args:
        image_size: height and width of a frame.
        state_size: elements of s.
        layers: of the encoder and of the decoder each: one or two full ones, or convolutions.
        generator: source of the random weights.
    """

    def __init__(
        self,
        image_size: tuple[int, int],
        state_size: int,
        layers: Layers,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.image_size = image_size
        self.encode, self.decode = _parts(image_size, state_size, layers)
        self.lstm = nn.LSTM(HIDDEN, state_size, batch_first=True)
        for weights in self.parameters():
            with torch.no_grad():
                if weights.ndim == 1:
                    weights.zero_()
                else:
                    rows, columns = weights.flatten(1).shape
                    weights.copy_(paper_init((rows, columns), generator).view_as(weights))

    def begin_with(self, white: float) -> None:
        """Lets the untrained network expect so great a share of white pixels.

        From even odds on, all weights are first pushed to darken the picture, and the states of
        the convolutional variant end up where no gradient is left.
        """
        last = list(self.decode.parameters())[-1]
        with torch.no_grad():
            last.fill_(math.log(white / (1 - white)))

    def forward(
        self, frames: Float[Tensor, "B T height width"]
    ) -> Float[Tensor, "B T height width"]:
        """Logits of every frame, each given the true frames before it: the mode of training."""
        before = torch.cat([torch.zeros_like(frames[:, :1]), frames[:, :-1]], 1)
        codes = self.encode(before.flatten(0, 1)).unflatten(0, before.shape[:2])
        states, _ = self.lstm(codes)
        return self._logits(states)

    def generate(
        self, observed: Float[Tensor, "B observed height width"], horizon: int
    ) -> Float[Tensor, "B T height width"]:
        """Return logits of the observed frames and of those after them, fed with its own frames.

        Law: without a future it is `forward` (test_generation_without_a_future_is_training).
        """
        before = torch.cat([torch.zeros_like(observed[:, :1]), observed], 1)
        codes = self.encode(before.flatten(0, 1)).unflatten(0, before.shape[:2])
        states, memory = self.lstm(codes)
        logits = [self._logits(states)]
        for _ in range(horizon - 1):
            own = self.encode(logits[-1][:, -1].sigmoid())
            state, memory = self.lstm(own[:, None], memory)
            logits.append(self._logits(state))
        return torch.cat(logits, 1)[:, : observed.shape[1] + horizon]

    def _logits(self, states: Float[Tensor, "B T state"]) -> Float[Tensor, "B T height width"]:
        logits: Tensor = self.decode(states.flatten(0, 1))
        return logits.view(*states.shape[:2], *self.image_size)


def _parts(
    image_size: tuple[int, int], state_size: int, layers: Layers
) -> tuple[nn.Module, nn.Module]:
    """The encoder of frames [M, height, width] to codes, and the decoder of states."""
    num_pixels = math.prod(image_size)
    if layers == "one":
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(num_pixels, HIDDEN))
        return encoder, nn.Linear(state_size, num_pixels)
    if layers == "two":
        encoder = nn.Sequential(
            nn.Flatten(), nn.Linear(num_pixels, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN)
        )
        decoder = nn.Sequential(
            nn.Linear(state_size, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, num_pixels)
        )
        return encoder, decoder
    if any(side % 8 for side in image_size):
        raise InputError(f"frames are {image_size}; the convolutions need multiples of 8 pixels")
    first, second, third = CHANNELS
    small = (third, image_size[0] // 8, image_size[1] // 8)
    encoder = nn.Sequential(
        nn.Unflatten(1, (1, -1)),
        nn.Conv2d(1, first, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(first, second, 5, stride=2, padding=2), nn.ReLU(),
        nn.Conv2d(second, third, 5, stride=2, padding=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(math.prod(small), HIDDEN),
    )  # fmt: skip
    decoder = nn.Sequential(
        nn.Linear(state_size, math.prod(small)), nn.ReLU(), nn.Unflatten(1, small),
        nn.ConvTranspose2d(third, second, 4, stride=2, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(second, first, 4, stride=2, padding=1), nn.ReLU(),
        nn.ConvTranspose2d(first, 1, 4, stride=2, padding=1),
    )  # fmt: skip
    return encoder, decoder


def loss(
    network: EDLSTM, frames: Float[Tensor, "B T height width"], num_seen: int | None
) -> Float[Tensor, ""]:
    """What training lowers: mean cross-entropy of a pixel.

    Args:
        network: The network.
        frames: Whole clips.
        num_seen: None: true frames are fed throughout, as the paper trains; a number: after so
            many frames its own are fed, as in use, and these alone count.
    """
    if num_seen is None:
        return binary_cross_entropy_with_logits(network(frames), frames)
    logits = network.generate(frames[:, :num_seen], frames.shape[1] - num_seen)
    return binary_cross_entropy_with_logits(logits[:, num_seen:], frames[:, num_seen:])


@dataclass(frozen=True, eq=False)
class Recurrent:
    """A trained ED-LSTM as a predictor of the frames after the observed ones."""

    network: EDLSTM
    interpolates: bool = False

    @torch.no_grad()
    def predict(
        self,
        frames: Float[Tensor, "B T height width"],
        observed: Bool[Tensor, " T"],
        num_objects: int,
    ) -> Prediction:
        """Return the frames after the observed ones, on the CPU; counts are not used."""
        num_seen = int(observed.sum())
        horizon = len(observed) - num_seen
        if horizon == 0:
            return Prediction()
        device = next(self.network.parameters()).device
        logits = self.network.generate(frames[:, :num_seen].to(device), horizon)
        return Prediction(draw_frames=lambda: logits.sigmoid().cpu())
