// The page: sources of clips, the clip with its timeline, and the predictions.

import { bytes, get, post, upload } from "./api.js";
import { Stage, colour, showStreak } from "./draw.js";
import { Timeline } from "./timeline.js";
import { KINDS, Views, predictor, showComponents, showCounts } from "./views.js";

const FRAMES_PER_SECOND = 12;
const STEP_PER_LENGTH = 0.1; // step from one frame to the next, as a fraction of the arrow's length
const find = (id) => document.getElementById(id);

const state = {
  about: null, clip: null, count: 1, probabilities: null, answers: {}, balls: [], arrow: null, playing: false,
  timeline: new Timeline(find("timeline")),
};
const { timeline } = state;
const stage = new Stage(find("stage"));
const views = new Views(find("views"), () => draw());
const predict = predictor(state, showError, () => {
  if (!find("message").classList.contains("note")) showError(null);
  showAnswers();
});

// ---- messages ------------------------------------------------------------------------------

function showError(error) {
  find("message").hidden = error === null;
  find("message").classList.remove("note");
  find("message").textContent = error === null ? "" : error.message;
}

function note(text) {
  showError(new Error(text));
  find("message").classList.add("note");
}

const guarded = (act) => async (...given) => {
  try {
    await act(...given);
  } catch (error) {
    showError(error);
  }
};

// ---- clips ---------------------------------------------------------------------------------

async function use(clip, observed = clip.observed ?? middleHidden(clip.num_frames)) {
  Object.assign(state, { clip: { ...clip, levels: bytes(clip.frames) }, probabilities: null, answers: {} });
  timeline.load(observed, Number(find("ahead").value));
  if (timeline.now >= timeline.length) timeline.go(0);
  find("status").textContent = "";
  find("components").replaceChildren();
  draw();
  if (clip.num_objects) state.count = Math.min(clip.num_objects, state.about.max_objects);
  else if (!await countBalls()) return;
  showCounts(find("counts"), state, chooseCount);
  draw();
  await predict();
}

const middleHidden = (length) => Array.from({ length }, (_, t) => t < length / 4 || t >= length * 3 / 4);

function fill(gallery, clips) {
  const buttons = clips.map((clip) => {
    const button = document.createElement("button"), canvas = document.createElement("canvas");
    button.type = "button";
    showStreak(canvas, bytes(clip.frames), clip.num_frames, clip.height, clip.width);
    button.append(canvas, clip.title);
    button.addEventListener("click", guarded(async () => {
      for (const other of document.querySelectorAll(".gallery button")) other.setAttribute("aria-pressed", other === button);
      await use(clip);
    }));
    return button;
  });
  gallery.replaceChildren(...buttons);
}

const examples = guarded(async (seed) => fill(find("examples"), (await get(`api/examples?seed=${seed}`)).clips));

const sample = guarded(async () => {
  const request = {
    num_objects: Number(find("sample-count").value),
    num_frames: Number(find("sample-frames").value),
    seed: Math.floor(Math.random() * 2 ** 31),
  };
  fill(find("samples"), (await post("api/sample", request)).clips);
  find("samples").firstChild.click();
});

const openFile = guarded(async (file) => {
  if (!file) return;
  const limit = state.about.max_upload_bytes;
  if (file.size > limit) throw new Error(`${file.name} has ${(file.size / 2 ** 20).toFixed(0)} MiB; the limit is ${limit / 2 ** 20} MiB.`);
  note(`Reading ${file.name} …`);
  const found = await upload(file);
  showError(null);
  fill(find("uploaded"), found.clips);
  find("uploaded").firstChild.click();
  if (found.note) note(`Shown: ${found.note}.`);
});

const throwBalls = guarded(async () => {
  if (!state.balls.length) return;
  const clip = await post("api/throw", { balls: state.balls, num_frames: state.about.num_frames, seed: 0 });
  timeline.now = 0;
  await use(clip, Array(clip.num_frames).fill(true));
  play(true);
});

// ---- the model -----------------------------------------------------------------------------

// Returns false if another clip was chosen meanwhile.
async function countBalls() {
  const { clip } = state, { num_frames, height, width, frames } = clip;
  find("status").textContent = "counting balls …";
  const reply = await post("api/count", { video: { num_frames, height, width, frames }, mask: timeline.observed });
  if (state.clip !== clip) return false;
  find("status").textContent = `counted in ${Math.round(reply.milliseconds)} ms`;
  state.probabilities = reply.probabilities;
  state.count = 1 + reply.probabilities.indexOf(Math.max(...reply.probabilities));
  return true;
}

function chooseCount(count) {
  if (count > state.about.max_objects) return;
  state.count = count;
  showCounts(find("counts"), state, chooseCount);
  predict();
}

function showAnswers() {
  const shown = state.answers.interpolated ?? state.answers.inferred;
  if (shown) find("status").textContent = `answered in ${Math.round(shown.milliseconds)} ms`;
  if (shown) showComponents(find("components"), shown, state.about.components);
  draw();
}

// ---- drawing -------------------------------------------------------------------------------

function draw() {
  const { clip, answers } = state, { now } = timeline;
  if (!clip) return;
  stage.begin(clip.height, clip.width);
  const inside = now < clip.num_frames, observed = inside && timeline.observed[now];
  if (inside) stage.frame(clip.levels, now, clip.height, clip.width, observed ? 1 : 0.35);
  const hint = throwing() && !state.playing ? "drag here to throw a ball" : "";
  find("badge").textContent = observed ? hint : inside ? "hidden from the model" : "after the end";
  find("truth-badge").hidden = !clip.truth;
  for (const [kind, { dashes }] of Object.entries(KINDS)) {
    if (answers[kind]?.clip === clip && views.shown(kind)) drawTracks(answers[kind], now, colour(kind), dashes);
  }
  for (const path of clip.truth ?? []) stage.path(path, Math.min(now, path.length - 1), colour("truth"), [0.1, 1.1]);
  const shown = answers.interpolated ?? answers.inferred;
  if (shown?.clip === clip && shown.tracks.length > 1) drawNumbers(shown, now);
  if (state.arrow) drawArrow(state.arrow);
  views.show(answers, now, clip, timeline.masks());
  find("clock").textContent = `${now + 1} / ${timeline.length}`;
}

function drawTracks(view, now, stroke, dashes) {
  const t = Math.min(now, view.observed.length - 1);
  for (const track of view.tracks) {
    view.observed.forEach((observed, frame) => {
      if (!observed) stage.ellipse(track.path[frame], track.path_covariances[frame], stroke, { opacity: 0.05 });
    });
    track.branches.forEach((branch) => stage.branch(branch, view.observed, stroke));
    stage.path(track.path, t, stroke, dashes);
    stage.ellipse(track.positions[t], track.covariances[t], stroke, { line: true, opacity: 1 });
  }
}

function drawNumbers(view, now) {
  const t = Math.min(now, view.observed.length - 1);
  view.tracks.forEach(({ positions }, n) => stage.label(String(n + 1), positions[t]));
}

function drawArrow({ from, to }) {
  stage.arrow(from, to, colour("forecast"));
  const [ax, ay] = state.about.acceleration;
  const [vx, vy] = [0, 1].map((axis) => STEP_PER_LENGTH * (to[axis] - from[axis]));
  const flight = Array.from({ length: state.about.num_frames }, (_, t) => (
    [from[0] + vx * t + ax * t * (t - 1) / 2, from[1] + vy * t + ay * t * (t - 1) / 2]
  ));
  stage.path(flight, 0, colour("forecast"), [0.1, 1.1]);
}

function play(on) {
  if (on && !state.playing) requestAnimationFrame(tick);
  state.playing = on;
  find("play").firstElementChild.textContent = on ? "❚❚" : "▶";
  find("play").setAttribute("aria-label", on ? "Pause" : "Play");
}

let last = 0;
function tick(time) {
  if (!state.playing) return;
  if (time - last >= 1000 / FRAMES_PER_SECOND) {
    last = time;
    timeline.go((timeline.now + 1) % timeline.length);
  }
  requestAnimationFrame(tick);
}

// ---- input ---------------------------------------------------------------------------------

const throwing = () => !find("pane-throw").hidden;

function listenToStage() {
  const canvas = find("stage");
  canvas.addEventListener("pointerdown", (event) => {
    if (!throwing() || !state.clip) return;
    canvas.setPointerCapture(event.pointerId);
    play(false);
    const from = stage.toClip([event.clientX, event.clientY]);
    state.arrow = { from, to: from };
    draw();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!state.arrow) return;
    state.arrow.to = stage.toClip([event.clientX, event.clientY]);
    draw();
  });
  canvas.addEventListener("pointercancel", () => { state.arrow = null; draw(); });
  canvas.addEventListener("pointerup", () => {
    if (!state.arrow) return;
    const { from, to } = state.arrow;
    state.arrow = null;
    addBall({ x: from[0], y: from[1], vx: STEP_PER_LENGTH * (to[0] - from[0]), vy: STEP_PER_LENGTH * (to[1] - from[1]) });
  });
}

function addBall(ball) {
  if (state.balls.length >= state.about.max_objects) state.balls.shift();
  state.balls.push(ball);
  throwBalls();
}

function throwOne() {
  const { components, height } = state.about;
  const { position, step } = components[Math.floor(Math.random() * components.length)];
  const jitter = (size) => size * (Math.random() - 0.5);
  addBall({ x: position[0] + jitter(6), y: position[1] + jitter(height / 5), vx: step[0] * (1 + jitter(0.3)), vy: step[1] * (1 + jitter(0.3)) });
}

function openTab(tab) {
  for (const other of document.querySelectorAll("[role=tab]")) {
    const selected = other === tab;
    other.setAttribute("aria-selected", selected);
    other.tabIndex = selected ? 0 : -1;
    find(other.getAttribute("aria-controls")).hidden = !selected;
  }
  find("stage").classList.toggle("throwing", throwing());
  draw();
  if (tab.id === "tab-sample" && !find("samples").children.length) sample();
}

function listenToTabs() {
  const tabs = [...document.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => openTab(tab));
    tab.addEventListener("keydown", ({ key }) => {
      const offset = { ArrowLeft: -1, ArrowRight: 1 }[key];
      if (!offset) return;
      const next = tabs[(i + offset + tabs.length) % tabs.length];
      next.focus();
      openTab(next);
    });
  });
}

const RULES = {
  none: () => false,
  middle: (t, length) => t >= length / 4 && t < length * 3 / 4,
  end: (t, length) => t >= length / 3,
  most: (t, length) => t > 1 && t < length - 2,
};

function listenToTimeline() {
  timeline.addEventListener("move", draw);
  timeline.addEventListener("grab", () => play(false));
  timeline.addEventListener("mask", () => { draw(); predict(); });
  find("play").addEventListener("click", () => play(!state.playing));
  for (const button of document.querySelectorAll("[data-hide]")) {
    button.addEventListener("click", () => timeline.hide(RULES[button.dataset.hide]));
  }
  find("ahead").addEventListener("input", () => {
    find("ahead-shown").textContent = find("ahead").value;
    timeline.load(timeline.observed, Number(find("ahead").value));
    draw();
    predict();
  });
  find("count").addEventListener("click", guarded(async () => {
    if (await countBalls()) chooseCount(state.count);
  }));
}

function listenToSources() {
  let seed = 0;
  find("more-examples").addEventListener("click", () => examples(++seed));
  find("sample-again").addEventListener("click", sample);
  for (const name of ["sample-count", "sample-frames"]) {
    find(name).addEventListener("input", () => { find(`${name}-shown`).textContent = find(name).value; });
    find(name).addEventListener("change", sample);
  }
  find("throw-one").addEventListener("click", throwOne);
  find("throw-none").addEventListener("click", () => { state.balls = []; });
  find("upload").addEventListener("change", ({ target }) => { openFile(target.files[0]); target.value = ""; });
  const drop = find("drop");
  for (const kind of ["dragover", "dragleave", "drop"]) {
    drop.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", kind === "dragover");
      if (kind === "drop") openFile(event.dataTransfer.files[0]);
    });
  }
}

function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    const { target, key, shiftKey } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || !state.clip) return;
    if (target.matches("input, [role=tab]") || (key === " " && target.matches("button, summary"))) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[key];
    if (key === " ") play(!state.playing);
    else if (step) { play(false); timeline.go(timeline.now + step); if (shiftKey) timeline.toggle(timeline.now); }
    else if (key === "h" || key === "H") timeline.toggle(timeline.now);
    else if (key === "Escape") timeline.hide(RULES.none);
    else if (key >= "1" && key <= "9") chooseCount(Number(key));
    else return;
    event.preventDefault();
  });
}

const start = guarded(async () => {
  state.about = await get("api/about");
  const { model, max_objects, height, width, upload_formats, max_upload_bytes } = state.about;
  find("model").textContent = model;
  find("sample-count").max = max_objects;
  find("upload").accept = upload_formats.join(",");
  find("upload-formats").textContent = upload_formats.join(", ");
  find("upload-advice").textContent = `Clips of ${width}x${height} pixels, or any video, of which the moving parts are used; up to ${max_upload_bytes / 2 ** 20} MiB. Files are not stored.`;
  listenToStage();
  listenToTabs();
  listenToTimeline();
  listenToSources();
  listenToKeys();
  new ResizeObserver(draw).observe(find("screen"));
  await examples(0);
  const gallery = find("examples").children;
  gallery[Math.floor(gallery.length / 2)]?.click();
  play(!matchMedia("(prefers-reduced-motion: reduce)").matches);
  document.body.dataset.ready = "yes";
});

start();
