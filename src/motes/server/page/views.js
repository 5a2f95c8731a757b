// Predictions beside the clip: frames, numbers of objects, initial-state components.

import { bytes, latest, post } from "./api.js";
import { colour, showFrame } from "./draw.js";

export const KINDS = {
  inferred: { label: "Inferred", dashes: [], empty: "" },
  forecast: { label: "Forecast", dashes: [1.2, 0.9], empty: "Hide frames after the first ones to see a forecast." },
  interpolated: { label: "Interpolated", dashes: [2.4, 0.7, 0.4, 0.7], empty: "Hide frames to see them interpolated." },
};

const make = (tag, fields = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), fields);
  element.append(...children);
  return element;
};

export class Views {
  constructor(element, onToggle) {
    this.panels = {};
    for (const [kind, { label }] of Object.entries(KINDS)) {
      const box = make("input", { type: "checkbox", checked: true, id: `show-${kind}` });
      box.addEventListener("change", onToggle);
      const swatch = make("span", { className: "swatch" });
      swatch.style.background = colour(kind);
      const panel = {
        box, canvas: make("canvas"), text: make("p"),
        element: make("div", { className: "view empty", id: `view-${kind}` }),
      };
      panel.element.append(make("header", {}, make("label", {}, box, swatch, label)), panel.canvas, panel.text);
      this.panels[kind] = panel;
      element.append(panel.element);
    }
  }

  shown(kind) {
    return this.panels[kind].box.checked;
  }

  show(answers, now, { height, width }, masks) {
    for (const [kind, panel] of Object.entries(this.panels)) {
      const view = answers[kind];
      panel.element.classList.toggle("empty", !view);
      if (view) {
        showFrame(panel.canvas, view.levels, Math.min(now, view.observed.length - 1), height, width);
        panel.text.textContent = view.score;
      } else {
        Object.assign(panel.canvas, { width, height }); // which also clears it
        panel.text.textContent = masks[kind] ? "Computing …" : KINDS[kind].empty;
      }
    }
  }
}

// Mean distance from the true paths in hidden frames (or all), with the best matching of objects.
export function score(view, truth) {
  if (!truth || truth.length !== view.tracks.length) return "";
  const frames = truth[0].map((_, t) => t);
  const hidden = frames.filter((t) => !view.observed[t]);
  const scored = hidden.length ? hidden : frames;
  const distance = (n, m) => scored.reduce((sum, t) => {
    const [x, y] = view.tracks[n].path[t], [u, v] = truth[m][t];
    return sum + Math.hypot(x - u, y - v);
  }, 0) / scored.length;
  const best = Math.min(...orders(truth.map((_, n) => n)).map(
    (order) => order.reduce((sum, m, n) => sum + distance(n, m), 0) / order.length,
  ));
  return `${best.toFixed(1)} px from the true path${hidden.length ? " in hidden frames" : ""}`;
}

function orders(items) {
  if (items.length > 6) return [items]; // beyond 720 permutations, keep the order
  if (items.length < 2) return [items];
  return items.flatMap((first, i) => orders(items.toSpliced(i, 1)).map((rest) => [first, ...rest]));
}

// Requests the predictions that the masks allow, the most visible first; valid earlier answers are kept,
// and the rest is skipped if the input changes meanwhile.
export function predictor(state, report, done) {
  return latest(async (outdated) => {
    const { clip, count, timeline } = state, masks = timeline.masks();
    try {
      if (!timeline.observed.includes(true)) throw new Error("Every frame is hidden; show at least one.");
      for (const kind of ["interpolated", "forecast", "inferred"]) {
        if (state.clip !== clip || state.count !== count) return;
        const known = state.answers[kind], fits = known?.clip === clip && known.count === count;
        if (!masks[kind]) delete state.answers[kind];
        else if (!fits || known.observed.join() !== masks[kind].join()) {
          if (!fits) delete state.answers[kind];
          if (outdated()) return;
          const answer = await requestPrediction(kind, masks[kind], clip, count);
          if (state.clip === clip && state.count === count) state.answers[kind] = answer;
        }
        done();
      }
    } catch (error) {
      report(error);
    }
  });
}

async function requestPrediction(kind, mask, clip, count) {
  const { num_frames, height, width, frames } = clip;
  const reply = await post("api/query", { video: { num_frames, height, width, frames }, masks: [mask], num_objects: count });
  const [view] = reply.predictions;
  return { ...view, clip, count, levels: bytes(view.frames), score: score(view, clip.truth), milliseconds: reply.milliseconds };
}

export function showCounts(element, { about, count, probabilities }, choose) {
  const buttons = Array.from({ length: about.max_objects }, (_, i) => {
    const share = probabilities ? percent(probabilities[i]) : "";
    const button = make("button", { type: "button" }, String(i + 1), make("small", {}, share));
    button.setAttribute("role", "radio");
    button.setAttribute("aria-checked", i + 1 === count);
    button.addEventListener("click", () => choose(i + 1));
    return button;
  });
  element.replaceChildren(...buttons);
}

export function showComponents(element, view, components) {
  const rows = view.tracks.map(({ component_probabilities: shares }, n) => {
    const bar = make("div", { className: "share" }, ...shares.map((share, k) => {
      const text = `${direction(components[k].step)} ${percent(share)}`;
      const part = make("span", { title: text }, share > 0.25 ? text : "");
      part.style.flexGrow = share;
      return part;
    }));
    return make("div", { className: "component" }, make("span", {}, `ball ${n + 1}`), bar);
  });
  element.replaceChildren(...rows);
}

function direction([x, y]) {
  const eighth = Math.round(Math.atan2(-y, x) / (Math.PI / 4));
  return ["→", "↗", "↑", "↖", "←", "↙", "↓", "↘"][(eighth + 8) % 8];
}

const percent = (share) => (share > 0.995 && share < 1 ? "> 99 %" : `${Math.round(100 * share)} %`);
