"""See in tracks whether objects act on one another, and guess by which force.

Second differences of positions are regressed on polynomials of an object's own position and
velocity, and what is left on sums over the other objects of the kinds of `KINDS`. Without a clear
gain on other clips there is no such force, which takes less than a second to see. For the others a
regression with the force and field of the linear law gives a law from which
`motes.training.pair_fit` starts.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from motes.core.axes import Float, Tensor
from motes.kalman.pair_forces import PairLaw, products
from motes.training.contact_fit import TEST_SHARE, Scenes

SOFT = (0.01, 0.1, 0.3)  # softening of an attraction, in median distances
KINDS: dict[str, tuple[str, ...]] = {
    "free": (),
    "elastic": ("stiffness",),
    "spring": ("stiffness", "tension"),
    "attraction": ("attraction",),
}
CANDIDATES: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("free", (), 0.0),
    ("elastic", ("stiffness",), 0.0),
    ("spring", ("stiffness", "tension"), 0.0),
    *(("attraction", (f"attraction{softness}",), softness) for softness in SOFT),
)
LAGS = (1, 2, 4)  # frames of second differences
MIN_REDUCTION = 0.03  # of the residual sum of squares on other clips, to look closer
MAX_DEGREE = 4  # of polynomials of an object's own state
ROWS = 12  # second differences for each term of such a polynomial
MIN_ROWS = 50  # to fit to, and to test on
FAR = 20.0  # times the median of squared residuals: rows of wrong tracks


class Regression(NamedTuple):
    """A fit to second differences."""

    kind: str
    reduction: float  # of the residual sum of squares on other clips, relative to `free`
    curvature: float  # further reduction by a field that is not linear, relative to this kind
    coefficients: dict[str, float]
    softening: float
    force: Float[Tensor, " 2"]
    field: Float[Tensor, "2 4"]


def _columns(scenes: Scenes, lag: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return columns of the regression by name, second differences, and their clips."""
    x, seen = scenes.positions, scenes.observed
    before, at, after = x[:, :, : -2 * lag], x[:, :, lag:-lag], x[:, :, 2 * lag :]
    good = (seen[:, :, : -2 * lag] & seen[:, :, lag:-lag] & seen[:, :, 2 * lag :]).all(1)
    bend = (after - 2 * at + before) / lag**2
    velocity = (after - before) / (2 * lag)
    apart = at[:, None] - at[:, :, None]  # [i, j] = x_j - x_i
    r = apart.norm(dim=-1, keepdim=True)
    columns = {
        "stiffness": apart.sum(2),
        "tension": -(apart / r.clamp(min=1e-9)).sum(2),  # k L
    }
    for softness in SOFT:
        soft = softness * typical_distance(scenes)
        columns[f"attraction{softness}"] = (apart / (r.square() + soft**2) ** 1.5).sum(2)
    for axis in range(2):
        one = torch.zeros_like(at)
        one[..., axis] = 1.0
        columns[f"force{axis}"] = one
        for number, part in enumerate((*at.unbind(-1), *velocity.unbind(-1))):
            columns[f"field{axis}{number}"] = part[..., None] * one
        for number, part in enumerate(products(at).unbind(-1)):
            columns[f"curvature{axis}{number}"] = part[..., None] * one
    chosen = good[:, None].expand(bend.shape[:3])
    clip = torch.arange(len(x))[:, None, None].expand(chosen.shape)[chosen]
    return {name: part[chosen] for name, part in columns.items()}, bend[chosen], clip


def typical_distance(scenes: Scenes) -> float:
    """Return the median distance of two objects."""
    apart = (scenes.positions[:, None] - scenes.positions[:, :, None]).norm(dim=-1)
    return float(apart[apart > 0].median()) if bool((apart > 0).any()) else 1.0


def _solve(
    columns: dict[str, Tensor], bend: Tensor, test: Tensor, names: Sequence[str]
) -> tuple[dict[str, float], float]:
    """Return coefficients by least squares, and the sum of squared residuals of other clips."""
    X = torch.stack([columns[name] for name in names], -1)
    chosen = ~test
    for _ in range(2):  # again without the rows that are far off: wrong tracks
        flat, y = X[chosen].flatten(0, 1), bend[chosen].flatten()
        scale = flat.norm(dim=0).clamp(min=1e-12)
        beta = torch.linalg.lstsq(flat / scale, y[:, None]).solution[:, 0] / scale
        off = (bend - X @ beta).square().sum(-1)
        chosen = ~test & (off <= FAR * off[~test].median())
    off = (bend[test] - X[test] @ beta).square().sum(-1)
    # Wrong tracks count for a limited amount.
    squares = float(off.clamp(max=FAR * float(off.median())).sum())
    return dict(zip(names, beta.tolist(), strict=True)), squares


def _own_terms(state: Float[Tensor, "n 4"]) -> Float[Tensor, "n terms"]:
    """Return polynomials of standardised states, of a degree that their number allows."""
    z = (state - state.mean(0)) / state.std(0).clamp(min=1e-12)
    terms = z.new_ones(len(z), 1)
    for degree in range(1, MAX_DEGREE + 1):
        new = [
            z[:, list(chosen)].prod(-1)
            for chosen in itertools.combinations_with_replacement(range(4), degree)
        ]
        if len(z) < ROWS * (terms.shape[1] + len(new)):
            break
        terms = torch.cat([terms, torch.stack(new, -1)], -1)
    return terms


def _is_physical(kind: str, beta: Sequence[float]) -> bool:
    """Return whether coefficients are those of a force: springs pull back, lengths are positive."""
    return kind == "attraction" or all(value > 0 for value in beta)


def _tables(scenes: Scenes) -> Iterator[tuple[dict[str, Tensor], Tensor, Tensor]]:
    """Yield columns, second differences and the rows of test clips, for lags with enough rows."""
    for lag in LAGS:
        if scenes.positions.shape[2] < 2 * lag + 1:
            continue
        columns, bend, clip = _columns(scenes, lag)
        test = clip % TEST_SHARE == 0
        if min(int(test.sum()), int((~test).sum())) >= MIN_ROWS:
            yield columns, bend, test


@torch.no_grad()
def visible_forces(scenes: Scenes) -> dict[str, float]:
    """Return by how much each kind reduces the residual of what an object's own state explains.

    As a share of the sum of squares on other clips, with the lag at which it is largest; kinds
    whose coefficients are not those of a force are left out. Anything that depends on an object's
    own position and velocity alone, such as hands, walls and fields, explains itself.

    Law: objects that ignore one another show no force, weak springs do
        (test_juggling_shows_no_force_between_objects, test_weak_springs_are_visible).
    """
    found: dict[str, float] = {}
    for columns, bend, test in _tables(scenes):
        state = torch.cat([columns[f"field0{n}"][:, :1] for n in range(4)], -1)
        own, kinds = _own_terms(state), CANDIDATES[1:]
        names = list(dict.fromkeys(name for _, part, _ in kinds for name in part))
        every = torch.stack([bend, *(columns[name] for name in names)], -1)
        chosen = ~test
        for _ in range(2):  # again without the rows of wrong tracks
            fit = torch.linalg.lstsq(own[chosen], every[chosen].flatten(1)).solution
            rest = every - (own @ fit).view(every.shape)
            off = rest[..., 0].square().sum(-1)
            chosen = ~test & (off <= FAR * off[~test].median())
        limit = FAR * off[test].median()
        free = float(off[test].clamp(max=limit).sum())
        for kind, part, _ in kinds:
            X = rest[..., [1 + names.index(name) for name in part]]
            y = rest[chosen][..., 0].flatten()[:, None]
            beta = torch.linalg.lstsq(X[chosen].flatten(0, 1), y).solution[:, 0]
            left = (rest[test][..., 0] - X[test] @ beta).square().sum(-1).clamp(max=limit)
            gain = 1 - float(left.sum()) / max(free, 1e-30)
            if _is_physical(kind, beta.tolist()) and gain > found.get(kind, -math.inf):
                found[kind] = gain
    return found


def regressions(scenes: Scenes) -> list[Regression]:
    """Return the fit of each kind with the lag at which it explains most, the best first.

    A kind with more columns comes first only if it explains clearly more.
    """
    found: dict[str, Regression] = {}
    for columns, bend, test in _tables(scenes):
        common = [name for name in columns if name.startswith(("force", "field"))]
        curved = [name for name in columns if name.startswith("curvature")]
        free = 1.0
        for kind, names, softness in CANDIDATES:
            value, squares = _solve(columns, bend, test, [*common, *names])
            more = _solve(columns, bend, test, [*common, *curved, *names])[1]
            free = squares if kind == "free" else free
            fit = Regression(
                kind,
                1 - squares / max(free, 1e-30),
                1 - more / max(squares, 1e-30),
                {name.rstrip(".0123456789"): value[name] for name in names},
                softness * typical_distance(scenes),
                bend.new_tensor([value["force0"], value["force1"]]),
                bend.new_tensor([[value[f"field{a}{n}"] for n in range(4)] for a in range(2)]),
            )
            if kind not in found or fit.reduction > found[kind].reduction:
                found[kind] = fit
    return sorted(found.values(), key=lambda fit: len(KINDS[fit.kind]) / 1000 - fit.reduction)


def first_guess(scenes: Scenes, found: Regression) -> PairLaw:
    """Return a law to start from: that of the regression, with the noise that it left."""
    bend = _columns(scenes, 1)[1]
    x = scenes.positions[scenes.observed]
    one, k = x.new_ones(()), found.coefficients.get("stiffness", 0.0)
    noise = 1.4826 * (bend - bend.median(0).values).abs().median() / math.sqrt(6)
    speed = (scenes.positions[:, :, 1:] - scenes.positions[:, :, :-1]).flatten(0, 2)
    spread = torch.cat([x.var(0), speed.var(0)]) * 4 + noise**2
    return PairLaw(
        force=found.force,
        field=found.field,
        curvature=torch.zeros(2, 7, dtype=x.dtype),
        stiffness=k * one,
        rest_length=found.coefficients.get("tension", 0.0) / k * one if k else 0 * one,
        attraction=found.coefficients.get("attraction", 0.0) * one,
        softening=max(found.softening, 1e-3) * one,
        state_sds=torch.stack([0.1 * noise, 0.1 * noise]),
        position_variance=0.25 * noise**2 + 1e-12,
        initial_mean=torch.cat([x.mean(0), speed.mean(0)]),
        initial_covariance=spread.diag(),
        initial_coupling=torch.zeros(4, 4, dtype=x.dtype),
    )
