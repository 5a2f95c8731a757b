// The page for own videos: open, prepare, train, look, correct, export.

import { get, latest, post } from "./api.js";
import { drawGaps, drawPicture, objectAt } from "./overlay.js";

const find = (id) => document.getElementById(id);
const FORMATS = ["csv", "parquet", "trackpy", "napari", "trackmate", "mot"];
const HINTS = {
  crop: "Drag a rectangle around the part that matters.",
  keep: "Click the corners of a region; a double click closes it. Nothing outside counts.",
  leave_out: "Click the corners of a region; a double click closes it. Nothing inside counts.",
};
const PHASES = {
  preparing: "reading the recording", starting: "trying several starts", following: "reading all frames",
  done: "done", failed: "failed",
};
const state = {
  recording: null, frame: 0, tool: null, crop: null, keep: [], leave_out: [], corner: [], preview: null,
  mask: null, tracks: null, corrections: [], selected: [], dragged: null, picture: null, playing: 0,
};

function tell(text, note = false) {
  find("message").textContent = text ?? "";
  find("message").hidden = !text;
  find("message").classList.toggle("note", note);
}

const guarded = (act) => async (...given) => {
  try { return await act(...given); } catch (error) { tell(error.message); }
};

// ---- Pictures

const images = new Map(); // number -> Promise of an image; the last few are kept

function image(number) {
  if (!images.has(number)) {
    const loaded = new Image();
    loaded.src = `api/video/frames/${number}?of=${state.opened}`;
    images.set(number, loaded.decode().then(() => loaded));
    if (images.size > 90) images.delete(images.keys().next().value);
  }
  return images.get(number);
}

const refresh = latest(async () => {
  if (!state.recording) return;
  const number = state.frame;
  state.picture = await image(number).catch(() => null);
  draw();
  for (let next = number + 1; next <= Math.min(number + 5, state.recording.num_frames - 1); next++) image(next);
});

function draw() {
  if (!state.picture) return;
  drawPicture(find("picture"), state);
  drawGaps(find("gaps"), state);
  find("clock").textContent = `${state.frame + 1} / ${state.recording.num_frames}`;
  find("frame").value = state.frame;
}

function go(number) {
  state.frame = Math.max(0, Math.min(number, state.recording.num_frames - 1));
  refresh();
  if (!state.tracks) preview();
}

// ---- Preparation

const settings = () => ({
  crop: state.crop, threshold: find("automatic").checked ? null : Number(find("threshold").value),
  keep: state.keep, leave_out: state.leave_out,
});

const preview = latest(guarded(async () => {
  if (!state.recording || state.tracks) return;
  const frame = state.frame;
  const seen = await post("api/video/preview", { frame, settings: settings() });
  const mask = new Image();
  mask.src = `data:image/png;base64,${seen.mask}`;
  await mask.decode();
  Object.assign(state, { preview: seen, mask, masked: frame });
  find("prepared").src = `data:image/png;base64,${seen.prepared}`;
  find("threshold-shown").textContent = seen.threshold.toFixed(3);
  if (find("automatic").checked) find("threshold").value = seen.threshold;
  find("objects").placeholder = seen.typical_objects;
  find("seen").textContent = `${seen.objects_here} in this frame, usually ${seen.typical_objects}`;
  tell(null);
  draw();
}));

function choose(tool) {
  const lost = tool && tool !== state.tool && state.tracks && state.corrections.length;
  if (lost && !confirm("Drawing discards the tracks and their corrections. Go on?")) return;
  state.tool = state.tool === tool ? null : tool;
  state.corner = [];
  for (const button of document.querySelectorAll("[data-tool]")) {
    button.setAttribute("aria-pressed", String(button.dataset.tool === state.tool));
  }
  find("picture").classList.toggle("drawing", Boolean(state.tool));
  find("hint").textContent = HINTS[state.tool] ?? "Moving things are tinted. Draw if something else is tinted, too.";
  if (state.tool && state.tracks) forget();
  draw();
}

function forget() { // settings have changed: the tracks are of another preparation
  Object.assign(state, { tracks: null, corrections: [], selected: [] });
  find("result").hidden = find("gaps").hidden = true;
  preview();
}

// ---- The mouse

function place(event) {
  const box = find("picture").getBoundingClientRect(), { width, height } = state.recording;
  const scale = Math.min(box.width / width, box.height / height); // object-fit: contain
  const left = box.left + (box.width - scale * width) / 2, top = box.top + (box.height - scale * height) / 2;
  const clamp = (value, size) => Math.max(-0.5, Math.min(value, size - 0.5));
  return [clamp((event.clientX - left) / scale - 0.5, width), clamp((event.clientY - top) / scale - 0.5, height)];
}

function press(event) {
  if (!state.recording) return;
  event.preventDefault();
  find("picture").setPointerCapture(event.pointerId);
  const at = place(event);
  if (state.tool === "crop") state.dragged = { from: at };
  else if (state.tool) addCorner(at);
  else if (state.tracks) {
    const object = objectAt(state, at);
    if (object !== null) state.dragged = { object, from: at, at, moved: false };
  }
}

function move(event) {
  if (!state.dragged) return;
  const at = place(event);
  if (state.tool === "crop") {
    const [x, y] = state.dragged.from, whole = (values) => values.map((value) => Math.round(value + 0.5));
    const box = whole([Math.min(x, at[0]), Math.min(y, at[1]), Math.max(x, at[0]), Math.max(y, at[1])]);
    if (box[2] - box[0] > 7 && box[3] - box[1] > 7) { state.crop = box; preview(); }
  } else {
    state.dragged.at = at;
    state.dragged.moved ||= Math.hypot(at[0] - state.dragged.from[0], at[1] - state.dragged.from[1]) > 2;
  }
  draw();
}

function release() {
  const dragged = state.dragged;
  state.dragged = null;
  if (!dragged || state.tool) return draw();
  if (dragged.moved) {
    correct({ kind: "pin", object: dragged.object, frame: state.frame, x: dragged.at[0], y: dragged.at[1], sd: 1 });
  } else {
    const others = state.selected.filter((object) => object !== dragged.object);
    state.selected = others.length === state.selected.length ? [...others.slice(-1), dragged.object] : others;
    buttons();
  }
  draw();
}

function addCorner(at) {
  const last = state.corner.at(-1);
  if (last && Math.hypot(at[0] - last[0], at[1] - last[1]) < 4) { // a double click closes the polygon
    if (state.corner.length >= 3) {
      state[state.tool].push(state.corner);
      state.corner = [];
      preview();
    }
  } else state.corner.push(at);
  draw();
}

// ---- Training and tracks

async function watchTraining() {
  const { progress } = await get("api/video");
  const running = progress && !["done", "failed"].includes(progress.phase);
  find("stop").hidden = find("progress").hidden = !running;
  find("train").disabled = Boolean(running);
  if (!progress) return;
  const left = progress.steps_per_second ? (progress.of - progress.step) / progress.steps_per_second : null;
  find("phase").textContent = progress.phase === "training"
    ? `step ${progress.step} of ${progress.of}${left === null ? "" : `, ${Math.ceil(left)} s left`}`
    : PHASES[progress.phase];
  if (progress.of) find("progress").value = progress.step / progress.of; else find("progress").removeAttribute("value");
  if (progress.sprite) { find("sprite").src = `data:image/png;base64,${progress.sprite}`; find("sprite").hidden = false; }
  find("warnings").textContent = progress.warnings.join(" ");
  if (progress.phase === "failed") tell(progress.message);
  if (progress.phase === "done" && !state.tracks) await follow();
  if (running) setTimeout(guarded(watchTraining), 400);
}

async function follow() {
  const objects = Number(find("objects").value || find("objects").placeholder) || null;
  find("answered").textContent = "…";
  const asked = { num_objects: objects, corrections: state.corrections };
  const found = await post("api/video/tracks", asked);
  found.index = new Map(found.numbers.map((number, index) => [number, index]));
  Object.assign(state, { tracks: found, mask: null });
  find("result").hidden = find("gaps").hidden = false;
  find("answered").textContent = `${found.tracks.length} objects in ${found.milliseconds} ms`;
  if (state.preview) find("seen").textContent = `usually ${state.preview.typical_objects}`; // of no frame now
  tell(found.warning, true);
  list();
  buttons();
  draw();
}

const correct = guarded(async (correction) => {
  state.corrections.push(correction);
  state.selected = [];
  try {
    await follow();
  } catch (error) { // a correction that is refused is not kept
    state.corrections.pop();
    find("answered").textContent = "";
    throw error;
  }
});

function buttons() {
  find("swap").disabled = state.selected.length !== 2;
  find("forbid").disabled = state.selected.length !== 1;
  find("undo").disabled = state.corrections.length === 0;
}

function list() {
  const words = { pin: (c) => `object ${c.object} pinned`, forbid: (c) => `object ${c.object} not seen`,
    swap: (c) => `objects ${c.object} and ${c.other} swapped` };
  find("corrections").replaceChildren(...state.corrections.map((correction) => {
    const item = document.createElement("li");
    item.textContent = `${words[correction.kind](correction)}, frame ${correction.frame + 1}`;
    return item;
  }));
}

// ---- The recording

const open = guarded(async (file) => {
  if (!file) return;
  tell("Reading the recording …", true);
  const headers = { "content-type": "application/octet-stream" };
  const reply = await fetch(`api/video/open?name=${encodeURIComponent(file.name)}`, { method: "POST", headers, body: file });
  const record = await reply.json().catch(() => ({}));
  if (!reply.ok) throw new Error(record.error ?? `The server answered ${reply.status}.`);
  show(record);
});

function show(recording) {
  images.clear();
  Object.assign(state, { recording, frame: 0, crop: null, keep: [], leave_out: [], corner: [], mask: null,
    tracks: null, corrections: [], selected: [], opened: Date.now() });
  tell(recording.note, true);
  for (const id of ["picture", "transport", "prepare", "learn"]) find(id).hidden = false;
  find("result").hidden = find("gaps").hidden = find("sprite").hidden = true;
  find("phase").textContent = find("warnings").textContent = "";
  find("frame").max = recording.num_frames - 1;
  go(0);
}

function play() {
  if (state.playing) { clearInterval(state.playing); state.playing = 0; }
  else state.playing = setInterval(() => go((state.frame + 1) % state.recording.num_frames), 1000 / Math.min(state.recording.fps ?? 10, 30));
  find("play").querySelector("span").textContent = state.playing ? "❚❚" : "▶";
}

function listen() {
  find("file").addEventListener("change", () => open(find("file").files[0]));
  for (const kind of ["dragover", "drop"]) find("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    if (kind === "drop") open(event.dataTransfer.files[0]);
  });
  find("frame").addEventListener("input", () => go(Number(find("frame").value)));
  find("play").addEventListener("click", play);
  for (const button of document.querySelectorAll("[data-tool]")) button.addEventListener("click", () => choose(button.dataset.tool));
  find("clear").addEventListener("click", () => {
    Object.assign(state, { crop: null, keep: [], leave_out: [], corner: [] });
    if (state.tracks) forget(); else preview();
  });
  find("automatic").addEventListener("change", () => state.tracks ? forget() : preview());
  find("threshold").addEventListener("input", () => {
    find("automatic").checked = false;
    if (state.tracks) forget(); else preview();
  });
  find("train").addEventListener("click", guarded(async () => {
    if (state.tool) choose(state.tool);
    Object.assign(state, { tracks: null, corrections: [], selected: [] });
    find("result").hidden = find("gaps").hidden = true;
    const objects = Number(find("objects").value) || null;
    await post("api/video/train", { settings: settings(), num_objects: objects, iterations: Number(find("iterations").value) });
    await watchTraining();
  }));
  find("stop").addEventListener("click", guarded(() => post("api/video/stop", {})));
  find("swap").addEventListener("click", () => correct({ kind: "swap", object: state.selected[0], other: state.selected[1], frame: state.frame }));
  find("forbid").addEventListener("click", () => correct({ kind: "forbid", object: state.selected[0], frame: state.frame }));
  find("undo").addEventListener("click", guarded(async () => { state.corrections.pop(); await follow(); }));
  find("format").addEventListener("change", () => { find("export").href = `api/video/table?format=${find("format").value}`; });
  const picture = find("picture");
  for (const [kind, act] of [["pointerdown", press], ["pointermove", move], ["pointerup", release]]) picture.addEventListener(kind, act);
  document.addEventListener("keydown", (event) => {
    if (!state.recording || event.target.matches("input, select, button")) return;
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) go(state.frame + step);
    else if (event.key === " ") { event.preventDefault(); play(); }
    else if (event.key === "Escape") { state.corner = []; draw(); }
  });
}

find("format").append(...FORMATS.map((name) => new Option(name, name)));
listen();
guarded(async () => {
  const { recording, progress, corrections } = await get("api/video");
  if (recording) {
    show(recording);
    state.corrections = corrections;
    if (progress) await watchTraining();
  }
  document.body.dataset.ready = "yes";
})();
window.motesState = state; // for tests and the curious
