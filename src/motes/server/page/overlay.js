// Drawing on a recording: foreground, regions, tracks, ellipses, gaps.

// Okabe and Ito's palette, as in motes.output.tracks.
export const COLOURS = ["#56b4e9", "#e69f00", "#f0e442", "#cc79a7", "#009e73", "#d55e00", "#ffffff", "#0072b2"];
const TAIL = 30; // frames
const NINETY = 4.605; // squared radius of the ellipse that holds 90 %

const colour = (object) => COLOURS[object % COLOURS.length];

export function drawPicture(canvas, state) {
  const { width, height } = state.recording;
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.drawImage(state.picture, 0, 0);
  context.translate(0.5, 0.5); // pixel centres are whole numbers
  const line = Math.max(1, Math.min(width, height) / 250);
  if (state.tracks) drawTracks(context, state, line);
  else drawPreparation(context, state, line);
}

function drawPreparation(context, state, line) {
  const { width, height } = state.recording;
  if (state.mask && state.masked === state.frame) {
    const [left, top] = state.preview.box;
    context.drawImage(tinted(state.mask), left - 0.5, top - 0.5);
  }
  if (state.crop) {
    const [left, top, right, bottom] = state.crop;
    context.fillStyle = "#000a";
    context.beginPath();
    context.rect(-0.5, -0.5, width, height);
    context.rect(left - 0.5, top - 0.5, right - left, bottom - top);
    context.fill("evenodd");
  }
  context.lineWidth = 1.5 * line;
  for (const polygon of state.keep) outline(context, polygon, "#45e0f0", true);
  for (const polygon of state.leave_out) outline(context, polygon, "#ff5a4c", true);
  if (state.corner.length) outline(context, state.corner, "#ffffff", false);
}

function tinted(mask) {
  const layer = new OffscreenCanvas(mask.width, mask.height), context = layer.getContext("2d");
  context.drawImage(mask, 0, 0);
  const pixels = context.getImageData(0, 0, mask.width, mask.height);
  for (let i = 0; i < pixels.data.length; i += 4) {
    const seen = pixels.data[i] > 127;
    pixels.data.set(seen ? [255, 60, 200, 190] : [0, 0, 0, 0], i);
  }
  context.putImageData(pixels, 0, 0);
  return layer;
}

function outline(context, polygon, stroke, closed) {
  context.beginPath();
  for (const [x, y] of polygon) context.lineTo(x, y);
  if (closed) context.closePath();
  context.strokeStyle = stroke;
  context.stroke();
  for (const [x, y] of polygon) { context.fillStyle = stroke; context.fillRect(x - 2, y - 2, 4, 4); }
}

function drawTracks(context, state, line) {
  const now = state.tracks.index.get(state.frame);
  if (now === undefined) return;
  state.tracks.tracks.forEach((track, object) => {
    context.strokeStyle = context.fillStyle = colour(object);
    context.lineWidth = line;
    context.setLineDash([]);
    context.beginPath();
    for (let t = Math.max(0, now - TAIL); t <= now; t++) context.lineTo(...track.places[t]);
    context.stroke();
    const dragged = state.dragged?.object === object;
    const [x, y] = dragged ? state.dragged.at : track.places[now];
    const { long, short, angle } = ellipse(track.covariances[now]);
    context.setLineDash(track.found[now] ? [] : [3 * line, 3 * line]);
    context.lineWidth = state.selected.includes(object) ? 3 * line : 1.5 * line;
    context.beginPath();
    context.ellipse(x, y, Math.max(long, 3 * line), Math.max(short, 3 * line), angle, 0, 2 * Math.PI);
    context.stroke();
    context.font = `${Math.max(11, 9 * line)}px system-ui, sans-serif`;
    context.fillText(object, x + long + 3 * line, y - short - 2 * line);
  });
  context.setLineDash([]);
}

export function ellipse([xx, xy, yy]) {
  const middle = (xx + yy) / 2, half = Math.hypot((xx - yy) / 2, xy);
  const radius = (variance) => Math.sqrt(NINETY * Math.max(variance, 0));
  return { long: radius(middle + half), short: radius(middle - half), angle: Math.atan2(2 * xy, xx - yy) / 2 };
}

// The object under a place in the current frame, or null.
export function objectAt(state, [x, y]) {
  const now = state.tracks.index.get(state.frame);
  if (now === undefined) return null;
  const { width, height } = state.recording;
  const near = state.tracks.tracks.map((track, object) => {
    const [a, b] = track.places[now], { long } = ellipse(track.covariances[now]);
    return { object, away: Math.hypot(a - x, b - y), reach: Math.max(long, Math.min(width, height) / 25) };
  }).filter(({ away, reach }) => away <= reach).sort((one, other) => one.away - other.away);
  return near.length ? near[0].object : null;
}

// One row an object: filled where it was detected, thin where it is predicted.
export function drawGaps(canvas, state) {
  if (!state.tracks) return;
  const { tracks, numbers } = state.tracks, width = canvas.width = canvas.clientWidth || 600;
  const height = canvas.height = 42, row = height / tracks.length, last = state.recording.num_frames;
  const context = canvas.getContext("2d");
  tracks.forEach((track, object) => {
    context.fillStyle = colour(object);
    track.found.forEach((found, index) => {
      const left = numbers[index] / last * width, across = Math.max(width / last, 1);
      if (found) context.fillRect(left, object * row + 1, across, row - 2);
      else context.fillRect(left, (object + 0.5) * row - 0.5, across, 1);
    });
  });
  context.fillStyle = "#888";
  context.fillRect(state.frame / last * width, 0, 2, height);
}
