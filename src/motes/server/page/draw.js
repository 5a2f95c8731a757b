// Drawing on canvases: frames, paths and ellipses, in pixel coordinates of the clip.

const RADIUS_90 = Math.sqrt(-2 * Math.log(1 - 0.9)); // radius of an ellipse that contains 90 %

// The colours of the page are defined in style.css.
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`);

export function frameImage(levels, t, height, width) {
  const image = new ImageData(width, height);
  for (let i = 0, from = t * height * width; i < height * width; i++) {
    image.data.fill(levels[from + i], 4 * i, 4 * i + 3);
    image.data[4 * i + 3] = 255;
  }
  return image;
}

export function showFrame(canvas, levels, t, height, width) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  canvas.getContext("2d").putImageData(frameImage(levels, t, height, width), 0, 0);
}

// All frames in one image: the maximum over time, later frames brighter.
export function showStreak(canvas, levels, numFrames, height, width) {
  const maximum = new Uint8Array(height * width);
  for (let t = 0; t < numFrames; t++) {
    const shade = 0.35 + 0.65 * t / numFrames;
    for (let i = 0; i < maximum.length; i++) maximum[i] = Math.max(maximum[i], shade * levels[t * maximum.length + i]);
  }
  showFrame(canvas, maximum, 0, height, width);
}

export class Stage {
  constructor(canvas) {
    this.canvas = canvas;
    this.buffer = document.createElement("canvas");
  }

  // Fits the canvas to screen pixels; coordinates are clip pixels, whose centres are integers.
  begin(height, width) {
    const ratio = window.devicePixelRatio || 1;
    this.canvas.style.aspectRatio = `${width} / ${height}`;
    this.canvas.parentElement.style.setProperty("--aspect", width / height);
    const wide = Math.round(this.canvas.clientWidth * ratio);
    const high = Math.round(wide * height / width);
    if (this.canvas.width !== wide || this.canvas.height !== high) Object.assign(this.canvas, { width: wide, height: high });
    this.scale = wide / width;
    this.thin = Math.max(1.6 * ratio / this.scale, 0.12);
    this.context = this.canvas.getContext("2d");
    this.context.setTransform(1, 0, 0, 1, 0, 0);
    this.context.imageSmoothingEnabled = false;
    this.context.fillStyle = colour("screen");
    this.context.fillRect(0, 0, wide, high);
    this.toClip = ([x, y]) => {
      const box = this.canvas.getBoundingClientRect();
      return [(x - box.left) * width / box.width - 0.5, (y - box.top) * height / box.height - 0.5];
    };
    this.context.setTransform(this.scale, 0, 0, this.scale, this.scale / 2, this.scale / 2);
    this.context.lineCap = this.context.lineJoin = "round";
  }

  frame(levels, t, height, width, opacity) {
    showFrame(this.buffer, levels, t, height, width);
    this.context.globalAlpha = opacity;
    this.context.drawImage(this.buffer, -0.5, -0.5, width, height);
    this.context.globalAlpha = 1;
  }

  // A path is bright up to the current frame and faint after it; `dashes` distinguish predictions without colour.
  path(points, now, stroke, dashes) {
    const half = [points.slice(0, now + 1), points.slice(now)];
    half.forEach((part, later) => {
      this.context.beginPath();
      part.forEach(([x, y]) => this.context.lineTo(x, y));
      this.stroke(stroke, later ? 0.45 : 0.95, dashes, this.thin);
    });
  }

  // A possible path, in the frames that were not observed.
  branch(points, observed, stroke) {
    this.context.beginPath();
    points.forEach(([x, y], frame) => {
      if (observed[frame]) this.context.moveTo(x, y);
      else this.context.lineTo(x, y);
    });
    this.stroke(stroke, 0.25, [], this.thin / 2);
  }

  dot([x, y], radius, fill) {
    this.context.beginPath();
    this.context.arc(x, y, radius, 0, 2 * Math.PI);
    this.context.fillStyle = fill;
    this.context.fill();
  }

  // Text next to a point.
  label(text, [x, y]) {
    this.context.font = `${7 * this.thin}px sans-serif`;
    this.context.fillStyle = colour("truth");
    this.context.fillText(text, x + 3, y - 3);
  }

  ellipse([x, y], [xx, xy, yy], stroke, { line, opacity }) {
    const middle = (xx + yy) / 2, apart = Math.hypot((xx - yy) / 2, xy);
    const radii = [middle + apart, middle - apart].map((v) => RADIUS_90 * Math.sqrt(Math.max(v, 0)));
    this.context.beginPath();
    this.context.ellipse(x, y, radii[0], radii[1], Math.atan2(2 * xy, xx - yy) / 2, 0, 2 * Math.PI);
    if (line) {
      this.stroke(stroke, opacity, [], this.thin);
    } else {
      this.context.globalAlpha = opacity;
      this.context.fillStyle = stroke;
      this.context.fill();
      this.context.globalAlpha = 1;
    }
  }

  arrow([x, y], [toX, toY], stroke) {
    const angle = Math.atan2(toY - y, toX - x);
    const wing = (turn) => [toX - 2 * Math.cos(angle + turn), toY - 2 * Math.sin(angle + turn)];
    this.context.beginPath();
    this.context.moveTo(x, y);
    this.context.lineTo(toX, toY);
    if (Math.hypot(toX - x, toY - y) > 1) {
      this.context.moveTo(...wing(0.5));
      this.context.lineTo(toX, toY);
      this.context.lineTo(...wing(-0.5));
    }
    this.stroke(stroke, 1, [], 1.5 * this.thin);
    this.dot([x, y], 2.2, stroke);
  }

  stroke(style, opacity, dashes, width) {
    Object.assign(this.context, { strokeStyle: style, globalAlpha: opacity, lineWidth: width });
    this.context.setLineDash(dashes);
    this.context.stroke();
    this.context.setLineDash([]);
    this.context.globalAlpha = 1;
  }
}
