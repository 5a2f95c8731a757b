"""What the report says whatever was found: limits, names of scores, captions, style sheet."""

# What `motes.evaluation.baselines.bayes_limit` reaches, which is told the true physics and the shape of the balls,
# for 1, 2 and 3 objects, on the 600 clips of 48x48 pixels and 30 frames of results/limit.json.
# Nothing that sees only the clips can do better but by luck.
LIMITS_HOLD_FOR = ((48, 48), 30)
LIMITS: dict[str, tuple[float, float, float]] = {
    "tracked": (1.000, 1.000, 1.000),
    "noisy_rmse": (0.409, 0.420, 0.437),
    "path_rmse": (0.291, 0.298, 0.300),
    "forecast_rmse": (2.284, 2.283, 2.247),
    "interpolation_rmse": (0.392, 0.516, 0.460),
    "forecast_loss": (0.0139, 0.0264, 0.0375),
}
IDEAL_COVERAGE = 0.9

# name of a score: what a row of the table is called, its unit, what it tells, and its format
SCORES: dict[str, tuple[str, str, str, str]] = {
    "tracked": (
        "Tracked", "share of clips",
        "every ball within 4 pixels of the truth in every frame, never taken for another", ".3f",
    ),
    "noisy_rmse": (
        "Ball in sight", "pixels",
        "distance from the inferred position to the ball drawn there", ".2f",
    ),
    "path_rmse": (
        "Smooth track", "pixels", "distance to the path before noise shook the ball", ".2f",
    ),
    "forecast_rmse": (
        "Forecast", "pixels", "distance to the true path in all frames after the first 5", ".2f",
    ),
    "interpolation_rmse": (
        "Hidden gap", "pixels", "distance to the true path in the hidden middle", ".2f",
    ),
    "forecast_loss": (
        "Forecast picture", "nats a pixel",
        "surprise at the true frames; a picture that is blurred where it is unsure does best",
        ".4f",
    ),
    "forecast_loss_of_mean": (
        "The same, one best guess", "nats a pixel",
        "surprise when only the most likely picture is drawn, as the paper does", ".4f",
    ),
    "count_right": (
        "Counted", "share of clips", "the number of balls found, without being told it", ".3f",
    ),
    "infer_coverage90": ("Error bars, seen", "share", "true balls inside the 90 % ellipse", ".2f"),
    "path_coverage90": ("Error bars, track", "share", "true paths inside it", ".2f"),
    "forecast_coverage90": ("Error bars, forecast", "share", "true balls to come inside it", ".2f"),
    "interpolation_coverage90": ("Error bars, gap", "share", "hidden balls inside it", ".2f"),
}  # fmt: skip

# name of a picture: its title, and what to look for
CAPTIONS: dict[str, tuple[str, str]] = {
    "learning": (
        "A picture that sharpens",
        "Above: how the model would draw one ball, from the first steps to the last; nobody told "
        "it what a ball looks like. Below: the bound, a lower limit to how likely it finds the "
        "clips it learns from. Look for: a blur that becomes a disk, and a curve that rises and "
        "levels off.",
    ),
    "animation": (
        "One clip, told three times",
        "Left: what really happened. Middle: only the first 5 frames were shown, the rest is a "
        "forecast. Right: the middle was hidden. A coloured border means that the model did not "
        "see the frame; the blur and the 90 % ellipses say how unsure it is. Look for: ellipses "
        "that grow while nothing is seen, and the ball inside them.",
    ),
    "strip": (
        "Frame by frame",
        "Each row is the same clip; coloured borders mark hidden frames. Look for: forecast "
        "clouds that are wide but in the right place, and the gap closing again in the last row.",
    ),
    "trajectories": (
        "Tracks",
        "In pixels. Black: the true path, its start a circle. Colour: the model's path, with "
        "markers where a frame was seen and 90 % ellipses where none was. One row for each number "
        "of balls. Look for: black lines that stay inside the coloured tubes.",
    ),
    "overlays": (
        "Whole clips in one image",
        "All frames on top of each other, the later the lighter. Left the truth, then the picture "
        "of the model's mean path, as in the paper's figures. Look for: the same arcs.",
    ),
    "samples": (
        "Clips that never happened",
        "Nothing was shown: the model draws starts, flights and frames from what it has learned. "
        "Look for: arcs that could be real ones, from both sides.",
    ),
    "starts": (
        "Where balls start",
        "Grey: true starts, the arrows four frames of flight. Blue: the kinds of start that the "
        "model found by itself, with 90 % ellipses. Look for: one kind on each side, its arrow "
        "along the grey ones.",
    ),
    "latent_grid": (
        "Is the inner map of space sound?",
        "One ball drawn at each node of a regular grid of the model's own coordinates. Left: the "
        "pictures. Right: where they landed. Look for: a straight blue mesh wherever real balls "
        "flew (grey dots). A cell that is turned over (red, hatched) is a fold: two places that "
        "the model cannot tell apart. Corners that no ball visits mean nothing.",
    ),
}
ANSWERS = ("animation", "strip", "trajectories", "overlays", "samples")
LAW = ("starts", "latent_grid")

STYLE = """
:root { color-scheme: light dark; --ink: #1d1d1f; --soft: #5d5d66; --page: #fbfbfd; --card: #fff;
  --line: #d9d9e0; --accent: #0069a3 }
@media (prefers-color-scheme: dark) { :root { --ink: #ececf1; --soft: #a5a5b0; --page: #141416;
  --card: #1f1f23; --line: #38383f; --accent: #6db3ff } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; background: var(--page);
  color: var(--ink); font: 1rem/1.55 system-ui, sans-serif }
h1 { font-size: 1.9rem; margin: 0 } h2 { margin: 2.8rem 0 .6rem; font-size: 1.35rem }
h3 { margin: 0 0 .5rem; font-size: 1.05rem } p { max-width: 46rem } a { color: var(--accent) }
.soft, figcaption, small { color: var(--soft) }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .8rem }
.card, figure { background: var(--card); border: 1px solid var(--line); border-radius: .7rem;
  padding: .9rem 1rem; margin: 0 }
.card b { display: block; font-size: 1.7rem; line-height: 1.2 }
figure { margin: 1rem 0 } figcaption { font-size: .93rem; margin-top: .6rem }
img { display: block; max-width: 100%; height: auto; margin: 0 auto; background: #fff;
  border-radius: .4rem }
.wide { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse; width: 100%; font-size: .93rem }
th, td { text-align: left; padding: .45rem .42rem; border-bottom: 1px solid var(--line);
  vertical-align: top }
td small { display: block } .number { text-align: right; font-variant-numeric: tabular-nums;
  white-space: nowrap } th.number { white-space: normal }
td:first-child { min-width: 9rem }
@media (max-width: 40rem) { figure { overflow-x: auto } figcaption { position: sticky; left: 0 }
  img { max-width: none; width: 44rem } :is(#animation, #starts) img { max-width: 100% } }
pre { overflow-x: auto; background: var(--card); border: 1px solid var(--line);
  border-radius: .7rem; padding: .8rem 1rem; font-size: .9rem }
"""
