"""Deliberate faults for `tests.stress.mutations`: file, old text, new text, nearest tests."""

from typing import NamedTuple


class Fault(NamedTuple):
    """A change of a source file that the tests must notice."""

    file: str  # below src/motes
    old: str  # occurs once in the file
    new: str
    tests: tuple[str, ...]


def faults(file: str, tests: str, *changes: tuple[str, str]) -> list[Fault]:
    """Return the faults of one file."""
    paths = tuple(f"tests/{name}.py" for name in tests.split())
    return [Fault(file, old, new, paths) for old, new in changes]


KALMAN = [
    *faults(
        "kalman/model.py",
        "kalman/test_model kalman/test_kalman",
        (
            "observation_noise = map_vector(square_root(model.position_noise)",
            "observation_noise = 0.9 * map_vector(square_root(model.position_noise)",
        ),
        ("+ u + noise_t)", "+ noise_t)"),
        (
            "scatter = self.covariances + offsets[..., :, None] * offsets[..., None, :]",
            "scatter = self.covariances",
        ),
        ("likely = self.log_weights.argmax(", "likely = self.log_weights.argmin("),
        ("pick = component[..., None, None, None]", "pick = 0 * component[..., None, None, None]"),
    ),
    *faults(
        "kalman/linalg.py",
        "kalman/test_model kalman/test_kalman",
        (
            "constant = 0.5 * math.log(2 * math.pi) * num_observed",
            "constant = 0.5 * math.log(math.pi) * num_observed",
        ),
        ("+ (1 - mask).diag_embed()", "+ 2 * (1 - mask).diag_embed()"),
    ),
    *faults(
        "kalman/sequential.py",
        "kalman/test_sequential kalman/test_kalman",
        ("mean = m + map_vector(K, residual)", "mean = m + 0.99 * map_vector(K, residual)"),
        (
            "F_t @ spread[-1] @ F_t.mT + added_t",
            "F_t @ spread[-1] @ F_t.mT",
        ),
    ),
    *faults(
        "kalman/dynamics.py",
        "kalman/test_dynamics kalman/test_kalman",
        (
            "return self.log_delta.exp() * states[..., POSITION_DIM:]",
            "return states[..., POSITION_DIM:]",
        ),
        (
            "return Gaussian(mean, covariance + self.components().position_noise)",
            "return Gaussian(mean, covariance)",
        ),
        ("return torch.where(present, evidence, 0.0).sum(1)", "return evidence.sum(1)"),
        ("(noise.unsqueeze(-1) >= borders).sum(-1)", "(noise.unsqueeze(-1) < borders).sum(-1)"),
        ("Sigma + floor)", "Sigma)"),
        (
            "quadratic = (m * total).sum(-1) - (shift * mu).sum(-1)",
            "quadratic = (m * total).sum(-1)",
        ),
        ("self.logits.copy_(weights.log())", "self.logits.copy_(weights)"),
        (
            "L = factor.tril(-1) + factor.diagonal(dim1=-2, dim2=-1).exp().diag_embed()",
            "L = factor.diagonal(dim1=-2, dim2=-1).exp().diag_embed()",
        ),
    ),
    *faults(
        "kalman/track_evidence.py",
        "kalman/test_track_evidence",
        (
            "return Gaussian(map_vector(covariance, shift), covariance + model.position_noise)",
            "return Gaussian(map_vector(covariance, shift), covariance)",
        ),
        (
            "return fit + fit.transpose(1, 2) - own[:, :, None] - own[:, None]",
            "return fit + fit.transpose(1, 2) - 2 * own[:, :, None]",
        ),
        (
            "exponent = before[:, :, None] + later[:, None] + 2 * between",
            "exponent = before[:, :, None] + later[:, None] + between",
        ),
        ("- 0.5 * log_scale\n    return nats", "- log_scale\n    return nats"),
    ),
]

MODELS = [
    *faults(
        "models/elbo.py",
        "models/test_elbo training/test_step",
        (
            "return self.reconstruction + kl_weight * (self.entropy + self.log_prior)",
            "return self.reconstruction + kl_weight * self.entropy + self.log_prior",
        ),
        (
            "nats.sum(1) if observed is None else torch.where(observed, nats, 0.0).sum(1)",
            "nats.sum(1)",
        ),
        ("return torch.where(present, nats.sum(2), 0.0).sum(1)", "return nats.sum((1, 2))"),
        ("present, None if everywhere else detected)", "present, None)"),
    ),
    *faults(
        "models/model.py",
        "models/test_checkpoint training/test_step",
        ("manual_seed(config.seed), config.data", "manual_seed(0), config.data"),
    ),
    *faults(
        "models/checkpoint.py",
        "models/test_checkpoint",
        ("if value.shape != expected[name].shape:", "if False:"),
        ('if metadata.get("format") != "motes":', "if False:"),
    ),
    *faults(
        "models/paper.py",
        "models/test_paper_renderer models/test_paper_inference",
        ("alpha, xhat = mask.sigmoid() * present", "alpha, xhat = mask.sigmoid()"),
        ("x = self.empty_canvas.tanh()", "x = self.empty_canvas"),
        ("grad_both[:, :S].mul_(beta).mul_(grad_through)", "grad_both[:, :S].mul_(grad_through)"),
        ("past, under = grid[:, :-1].reshape(-1, S)", "past, under = grid[:, 1:].reshape(-1, S)"),
    ),
    *faults(
        "models/sprites/renderer.py",
        "models/sprites/test_renderer models/sprites/test_search_occlusion",
        (
            "return -torch.log1p(visibility * torch.expm1(-depth))",
            "return visibility * depth",
        ),
        ("/ times[index]", "/ 1"),
        ("kernels: Tensor = split.flip(-3, -1)", "kernels: Tensor = split"),
        (
            "x = corner[..., 0, None, None].long() + taps",
            "x = corner[..., 0, None, None].long() + taps + 1",
        ),
        (
            "depth = torch.where(detected[present][:, None, :, None], depth, depth.detach())",
            "depth = depth",
        ),
    ),
    *faults(
        "models/sprites/grid_posterior.py",
        "models/sprites/test_grid_posterior models/sprites/test_grid_posterior_frames",
        ("surprise + 2 * self._log_side()", "surprise + self._log_side()"),
        ("return 0.5 * torch.erfc(-noise * math.sqrt(0.5))", "return 0.5 * torch.erfc(-noise)"),
        (
            "return place.covariance * (border[..., None] / (-2 * math.log(1 - REGION)))",
            "return place.covariance",
        ),
        (
            "return torch.where(self.detected[..., None], found, self.expected_means)",
            "return found",
        ),
    ),
    *faults(
        "models/sprites/likelihood_maps.py",
        "models/sprites/test_likelihood_maps models/sprites/test_likelihood_maps_detection",
        ("scatter + cell**2 / 12", "scatter + 0 * cell**2 / 12"),
        (
            "blend = torch.lerp(weights, weights.mean(-2, keepdim=True).expand_as(weights), share)",
            "blend = weights",
        ),
        ("crops.masked_fill_(~self.observed[:, None, None, None, None], 0.0)", "crops"),
        ("x, y = mean.round().long().unbind(-1)", "x, y = mean.floor().long().unbind(-1)"),
    ),
    *faults(
        "models/sprites/search.py",
        "models/sprites/test_search_swaps models/sprites/test_search_passes "
        "models/sprites/test_search",
        ("gained = (reached > bound[clips]).nonzero()[:, 0]", "gained = torch.arange(len(clips))"),
        (
            "time >= frame if persistent else time == frame, swapped",
            "time > frame if persistent else time == frame, swapped",
        ),
        ("pairs = present[:, :, None] & present[:, None]", "pairs = present[:, :, None] | True"),
        (
            "near = (time - frame[:, None]).abs() < MIN_SEPARATION",
            "near = (time - frame[:, None]).abs() < 1",
        ),
    ),
    *faults(
        "models/layers/renderer.py",
        "models/layers/test_renderer models/layers/test_search",
        ("log_orders = torch.lgamma(", "log_orders = 0 * torch.lgamma("),
        ("- 2 * crossed + b.square()", "- crossed + b.square()"),
        ("/ _multiplicity(near, there)", "/ 1"),
        (
            "return (SCALE_UNIT * self.raw_scale).exp() + MIN_SCALE",
            "return (SCALE_UNIT * self.raw_scale).exp()",
        ),
        (
            "placed = placed.take_along_dim(order[:, :, None, None], 1)",
            "placed = placed + 0 * order[:, :, None, None]",
        ),
    ),
    *faults(
        "models/layers/fitting.py",
        "models/layers/test_fitting_initialization models/layers/test_fitting_refit",
        (
            "opacity = (sums.pull + TABLE_WEIGHT * before) / (sums.weight + TABLE_WEIGHT)",
            "opacity = sums.pull / sums.weight.clamp(min=1e-6)",
        ),
        ("alone = ((gap > 2 * radius) | ~others).all(-1) & there", "alone = there"),
        ("return torch.stack([x, y], -1)\n\n\ndef ", "return torch.stack([y, x], -1)\n\n\ndef "),
    ),
]

QUERIES = (
    faults(
        "queries/validation.py",
        "queries/test_validation queries/test_queries",
        ("if low < 0 or high > 1:", "if low < 0 or high > 255:"),
        ("if not bool(flags.any(1).all()):", "if False:"),
        ("if low < 1 or high > model.max_searchable_objects:", "if low < 1:"),
        ("given = torch.where(shown, given, 0.0)", "given = given"),
    )
    + faults(
        "queries/tracks.py",
        "queries/test_queries evaluation/test_calibration",
        ("scale[:, None, None, None, None] * q.covariances()", "q.covariances()"),
    )
    + faults(
        "queries/__init__.py",
        "queries/test_queries queries/test_validation evaluation/test_calibration",
        ("device=model.device) < checked.shape[1]", "device=model.device) <= checked.shape[1]"),
        (
            "component=torch.where(present, tracks.component[:, :N], -1)",
            "component=tracks.component[:, :N]",
        ),
        (
            "pixel_covariances=shown(M @ tracks.covariances @ M.mT)",
            "pixel_covariances=shown(M @ tracks.covariances @ M)",
        ),
    )
)

EVALUATION = [
    *faults(
        "evaluation/metrics.py",
        "evaluation/test_metrics",
        ("return math.sqrt(float(squares.nanmean()))", "return float(squares.nanmean())"),
        (
            "near: Tensor = (distance <= TRACKED_WITHIN)",
            "near: Tensor = (distance <= 2 * TRACKED_WITHIN)",
        ),
        ("total += last.get(i, j) != j", "total += 1"),
        ("order = cheapest_order(-hits.double())", "order = cheapest_order(hits.double())"),
        ("return -2 * math.log(1 - level)", "return -math.log(1 - level)"),
        ("0.5 * determinant.log()", "determinant.log()"),
        (
            "losses = -(frames * p.log() + (1 - frames) * (1 - p).log())",
            "losses = -(frames * p.log())",
        ),
        ("return ratios.sqrt() if statistics.root else ratios", "return ratios"),
        (
            "drawn = torch.randint(size, (NUM_RESAMPLES, size)",
            "drawn = torch.randint(size, (NUM_RESAMPLES, size // 2)",
        ),
    ),
    *faults(
        "evaluation/evaluate.py",
        "evaluation/test_evaluate",
        ('"forecast": time < NUM_CONTEXT,', '"forecast": time <= NUM_CONTEXT,'),
    ),
    *faults(
        "evaluation/predictor.py",
        "evaluation/test_evaluate",
        ("visible = visible & recorded[:, None]", "visible = visible"),
        (
            "predictor.predict(truth.frames * observed.view(shape), observed",
            "predictor.predict(truth.frames, observed",
        ),
    ),
    *faults(
        "evaluation/iwae.py",
        "evaluation/test_evaluate",
        (
            "weighted = torch.stack(log_ratios).logsumexp(0) - math.log(NUM_DRAWS)",
            "weighted = torch.stack(log_ratios).logsumexp(0)",
        ),
    ),
    *faults(
        "evaluation/calibration.py",
        "evaluation/test_calibration",
        ("LEVEL = 0.9", "LEVEL = 0.5"),
        ("quantile / squared_radius(LEVEL)", "quantile"),
    ),
    *faults(
        "evaluation/baselines/bayes_limit.py",
        "evaluation/test_baselines",
        ("states = states @ A.T + u", "states = states @ A.T"),
        ("torch.where(allowed, -speed.log(), -torch.inf)", "torch.where(allowed, 0 * speed, 0.0)"),
    ),
]

DATA = [
    *faults(
        "data/clips.py",
        "data/test_clips",
        ("torch.arange(7, -1, -1", "torch.arange(8)  # , -1, -1"),
        (
            "if high > 1:\n            frames = frames / np.float32(255)",
            "if high > 1:\n            frames = frames / np.float32(256)",
        ),
        (
            "return (frames if observed is None else frames[observed]).median(0).values",
            "return frames.median(0).values",
        ),
        ("mean = directions[:, -1], deviations", "mean = directions[:, 0], deviations"),
        ("        direction = -direction\n", "        pass\n"),
        ('if "num_objects" in annotations and annotations["num_objects"].min() < 0:', "if False:"),
    ),
    *faults(
        "data/worlds/physics.py",
        "data/worlds/test_physics",
        ("(0.0, -g * delta**2 / 2, 0.0, -g * delta)", "(0.0, -g * delta**2, 0.0, -g * delta)"),
        ("vx = np.where(from_right, -1.0, 1.0) * speed", "vx = speed"),
        ("self.left[0] + 0.9 * furthest, self.left[1]", "self.left[0] + furthest, self.left[1]"),
        (
            "vy = np.where(below, -self.bounce, 1.0) * states[..., 3]",
            "vy = np.where(below, -1.0, 1.0) * states[..., 3]",
        ),
    ),
    *faults(
        "data/worlds/corruptions.py",
        "data/worlds/test_registry",
        (
            "observed = torch.from_numpy(order >= dropped)",
            "observed = torch.from_numpy(order > dropped)",
        ),
        ("contribution[:n] *= 1 - opacity", "contribution[:n] *= 1"),
        ("hidden = (centre - radius >= first)", "hidden = (centre >= first)"),
    ),
]

VIDEO = [
    *faults(
        "video/foreground.py",
        "video/test_prepare",
        ("return max(contrast / 2, floor) / full", "return max(contrast, floor) / full"),
        ("return np.full_like(sample[0], 0 if kind", "return np.full_like(sample[0], 1 if kind"),
        ("span, wanted = 1, 2 * by + 1", "span, wanted = 1, by + 1"),
        ("return max(counts, key=lambda count: (counts[count], count))", "return max(counts)"),
        ("apart = np.abs((hue - wanted + 180) % 360 - 180)", "apart = np.abs(hue - wanted)"),
    ),
    *faults(
        "video/prepare.py",
        "video/test_prepare",
        ("if frame.time < span[0]:", "if frame.time <= span[0]:"),
    ),
    *faults(
        "video/clips.py",
        "video/test_clips",
        (
            "held = held[stride:] + list(islice(frames, stride))",
            "held = list(islice(frames, num_frames))",
        ),
        ("in_grey |= bool(((frames > 0) & (frames < 255)).any())", "in_grey = False"),
    ),
    *faults(
        "video/source.py",
        "video/test_source video/test_ffmpeg",
        ("LUMA = (19595, 38470, 7471)", "LUMA = (38470, 19595, 7471)"),
        ("time = frame.time - start", "time = frame.time"),
        ("return [(int(word) if odd % 2 else 0, word)", "return [(0, word)"),
    ),
]

TRAINING = [
    *faults(
        "training/inputs.py",
        "training/test_inputs training/test_inputs_schedule training/test_step",
        ("if step < schedule.frozen_dynamics", "if step <= schedule.frozen_dynamics"),
        ("schedule.dynamics_rate * learning_rate", "learning_rate"),
        ("if low > 0 and high > 0:", "if False:"),
        ("searched = step - step % config.schedule.steps_per_search", "searched = step"),
        ("key=(2 * config.seed + 1, step)", "key=(2 * config.seed + 1, 0)"),
        ("held_out = min(config.data.num_held_out, max(num_clips // 10, 1))", "held_out = 1"),
        ("sprite_width=0.9 * radius", "sprite_width=1.8 * radius"),
        (
            "parts = clips[: data.num_clips], clips[data.num_clips :]",
            "parts = clips, clips[data.num_clips :]",
        ),
        ("if num_frames < 2:", "if num_frames < 1:"),
        ("(frames / -torch.expm1(-mass / (2 * math.pi * width**2)))", "(frames / 1)"),
    ),
    *faults(
        "training/step.py",
        "training/test_step training/test_step_fit_dynamics training/test_step_initialize",
        ("total += float(terms.weighted(1.0).sum())", "total += float(terms.weighted(4.0).sum())"),
        ("fit_dynamics(dynamics, positions.cpu(), observed.cpu())", "pass"),
        ("EXPLORE_UNTIL = 0.6", "EXPLORE_UNTIL = 1.6"),
        ("exploring = self.step < EXPLORE_UNTIL * schedule.iterations", "exploring = True"),
        (
            "part.requires_grad_(self.step >= schedule.frozen_occlusion)",
            "part.requires_grad_(True)",
        ),
        ("OCCLUSION_RATE * rates[0]", "rates[0]"),
        ("if not bool(log_prior() >= before):", "if False:"),
        ("best = max(ends, key=lambda trial: trial.bound)", "best = ends[0]"),
        ("means = (sums / max(self.num_summed, 1)).cpu()", "means = sums.cpu().clone()"),
        ("loss = -terms.weighted(kl_weight.float()).sum()", "loss = -terms.weighted(1.0).sum()"),
        ("mine = spread[distributed.rank() :: distributed.world_size()]", "mine = spread[:1]"),
    ),
    *faults(
        "training/train.py",
        "training/test_step integration/test_train_resume integration/test_faults",
        (
            "best = max(outcomes, key=lambda outcome: outcome.held_out_bound)\n    if len",
            "best = outcomes[0]\n    if len",
        ),
        ("check_new_folder(out)  # another", "pass  # another"),
        ('            if json.loads(line)["step"] <= step:', "            if True:"),
        ("require_finite(self.trainer)  # an infinite", "pass  # an infinite"),
    ),
    *faults(
        "training/distillation.py",
        "training/test_distillation",
        (
            "weighted = (squares + math.log(2 * math.pi)) * q.scales.detach()",
            "weighted = squares + math.log(2 * math.pi)",
        ),
        ("(1 + FIRST_FRAMES * torch.exp(-time / FADE))", "(1 + 0 * time)"),
        ("if own != its:", "if False:"),
    ),
    *faults(
        "training/self_distillation.py",
        "training/test_self_distillation",
        (
            "bits[present] |= singles.bits[members[present, n]]",
            "bits[present] = singles.bits[members[present, n]]",
        ),
    ),
    *faults(
        "training/presets.py",
        "training/test_step training/test_inputs_schedule",
        ("iterations=200_000,", "iterations=100_000,"),
    ),
    *faults(
        "training/gpu/reference_ops.py",
        "training/gpu/test_networks",
        ("through[d % 2, :, n] = (1 - beta) * g", "through[d % 2, :, n] = g"),
        (
            "square.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)",
            "square.mul_(BETA_2)",
        ),
        ("residual.copy_(frames - both.sigmoid())", "residual.copy_(frames)"),
    ),
    *faults(
        "training/gpu/replicas.py",
        "training/gpu/test_replicas",
        ('step_size = step_sizes[name.startswith("dynamics.")]', "step_size = step_sizes[0]"),
        (
            "evidence = torch.where(present, joint.logsumexp(-1), 0.0).sum(-1)",
            "evidence = joint.logsumexp(-1).sum(-1)",
        ),
    ),
]

REST = [
    *faults(
        "core/files.py",
        "core/test_files models/test_checkpoint",
        ("os.fsync(file.fileno())", "pass"),
        ("temporary.chmod(permissions)", "pass"),
        ("if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):", "if False:"),
    ),
    *faults(
        "core/memory.py",
        "core/test_memory",
        ("needed <= free,", "True,"),
        ("return max(budget * factor // item_size, 1)", "return budget * factor // item_size"),
    ),
    *faults(
        "config.py",
        "test_config training/test_step",
        ("batch_size: int = 20", "batch_size: int = 40"),
        (
            "return tuple((round(step * factor), value) for step, value in knots)",
            "return tuple((step, value) for step, value in knots)",
        ),
        ('require(not unknown, f"{place} has unknown', 'require(True, f"{place} has unknown'),
        ("require(self.channels in (1, 3)", "require(True"),
    ),
    *faults(
        "output/tracks.py",
        "output/test_tracks",
        ("np.full(2, (factor - 1) / 2)", "np.full(2, 0.0)"),
        (
            "pixel_velocities=where.velocities(answer.pixel_velocities)",
            "pixel_velocities=answer.pixel_velocities",
        ),
        ('if suffix == ".gif" and num_frames > MAX_GIF_FRAMES:', "if False:"),
        ("image = last // np.uint8(3)", "image = last"),
    ),
    *faults(
        "output/plots.py",
        "output/test_plots",
        (
            "radii = np.sqrt(-2 * math.log(1 - LEVEL) * eigenvalues.clip(0))",
            "radii = np.sqrt(eigenvalues.clip(0))",
        ),
        (
            "canvas = (1 - frame) * canvas + frame * frames.dtype.type(shade)",
            "canvas = canvas + frame * frames.dtype.type(shade)",
        ),
    ),
    *faults(
        "output/evaluation_report.py",
        "output/test_reports output/test_demo",
        ("if errors[n, frame] > metrics.GATE and others.min() <= metrics.GATE:", "if False:"),
        ('and name != record["model"]', ""),
    ),
    *faults(
        "output/demo_report.py",
        "output/test_reports output/test_demo",
        ('if name.endswith("coverage90"):', "if False:"),
    ),
    *faults(
        "output/html.py",
        "output/test_reports output/test_demo",
        ('kind = "gif" if data.startswith(b"GIF8") else "png"', 'kind = "png"'),
    ),
    *faults(
        "server/security.py",
        "server/test_security server/test_app",
        ('if origin is not None and origin != f"http://{host}":', "if False:"),
        ("if name not in self.names and not (self.any_address and is_address(name)):", "if False:"),
        ("if len(body) > limit:", "if False:"),
        ("if not declared.isdecimal() or int(declared) > limit:", "if False:"),
        ('if path.startswith("/api/") and site not in ("same-origin", "none"):', "if False:"),
    ),
    *faults(
        "server/schemas.py",
        "server/test_app",
        ("if len(levels) != expected:", "if False:"),
        ("levels = (255 * frames).round()", "levels = (254 * frames).round()"),
    ),
    *faults(
        "server/playground.py",
        "server/test_app",
        ("if len(request.mask) != len(frames):", "if False:"),
    ),
    *faults(
        "cli/queries.py",
        "cli/test_commands",
        ("if not 0 <= first < last <= num_frames:", "if not 0 <= first < last:"),
        ("last = int(end) if colon else first + 1", "last = int(end) if colon else first + 2"),
        ("observed &= clips.observed", "pass"),
        ("clips = clips.select(slice(None), slice(query.num_observed))", "pass"),
        (
            "counts = clips.num_objects if options.num_objects is None else options.num_objects",
            "counts = clips.num_objects",
        ),
    ),
    *faults(
        "cli/evaluate.py",
        "cli/test_commands evaluation/test_evaluate",
        ("if data is None and seed == config.seed:", "if False:"),
        (
            "_new_clips(data, NUM_ALIGNING, data.seed)",
            "_new_clips(data, NUM_ALIGNING, data.seed + 1)",
        ),
        (
            "record = score(predictor, clips, training, progress)",
            "record = score(predictor, clips, clips, progress)",
        ),
    ),
    *faults(
        "cli/train.py",
        "cli/test_commands",
        ("config = config.stretched(iterations)", "pass"),
        (
            "dataclasses.replace(PRESETS[name], seed=seed)",
            "dataclasses.replace(PRESETS[name], seed=0)",
        ),
    ),
]

TRACKING = [
    *faults(
        "tracking/existence.py",
        "tracking/test_existence",
        ("(stay * rates.on, stay * (1 - rates.on), rates.death)", "(stay * rates.on, stay, 0.0)"),
        ("(stay * (1 - rates.off), stay * rates.off,", "(stay * rates.off, stay * rates.off,"),
    ),
    *faults(
        "tracking/assignment.py",
        "tracking/test_assignment",
        ("useful = np.flatnonzero(gains > 0)", "useful = np.arange(len(gains))"),
        ("part[gain[part].argmax()]", "part[gain[part].argmin()]"),
    ),
    *faults(
        "tracking/fitting.py",
        "tracking/test_fitting",
        ("own[:, 2, 2] += 1 / prior[1] ** 2", "pass  # no prior"),
        (
            "shared = cross_products(jacobian, centres, pairs) * precision",
            "shared = 0 * cross_products(jacobian, centres, pairs)",
        ),
    ),
]

FAULTS = [*TRACKING, *KALMAN, *MODELS, *QUERIES, *EVALUATION, *DATA, *VIDEO, *TRAINING, *REST]
