// The timeline: the current frame, and the frames that are observed.

export class Timeline extends EventTarget {
  constructor(element) {
    super();
    this.element = element;
    this.observed = [];
    this.ahead = 0;
    this.now = 0;
    element.addEventListener("pointerdown", (event) => this.grab(event));
    element.addEventListener("pointermove", (event) => this.drag(event));
    for (const end of ["pointerup", "pointercancel"]) element.addEventListener(end, () => this.drop());
  }

  get length() {
    return this.observed.length + this.ahead;
  }

  // Observed frames of each prediction: all, those before the first gap, those not hidden.
  masks() {
    const beyond = Array(this.ahead).fill(false);
    const gap = this.observed.indexOf(false);
    return {
      inferred: [...this.observed.map(() => true), ...beyond],
      forecast: gap > 0 ? [...this.observed.map((_, t) => t < gap), ...beyond] : null,
      interpolated: gap >= 0 && this.observed.includes(true) ? [...this.observed, ...beyond] : null,
    };
  }

  load(observed, ahead) {
    this.observed = observed;
    this.ahead = ahead;
    this.now = Math.min(this.now, this.length - 1);
    this.element.replaceChildren(...Array.from({ length: this.length }, () => document.createElement("i")));
    this.paint();
  }

  hide(rule) {
    this.observed = this.observed.map((_, t) => !rule(t, this.observed.length));
    this.changed();
  }

  toggle(t) {
    if (t >= this.observed.length) return;
    this.observed[t] = !this.observed[t];
    this.changed();
  }

  go(t) {
    this.now = Math.max(0, Math.min(t, this.length - 1));
    this.paint();
    this.dispatchEvent(new Event("move"));
  }

  changed() {
    this.paint();
    this.dispatchEvent(new Event("mask"));
  }

  paint() {
    [...this.element.children].forEach((cell, t) => {
      const beyond = t >= this.observed.length;
      cell.className = [beyond ? "beyond" : this.observed[t] ? "" : "hidden", t === this.now ? "now" : ""].join(" ");
    });
    const label = this.now >= this.observed.length ? "after the end" : this.observed[this.now] ? "observed" : "hidden";
    const attributes = { valuemax: this.length, valuenow: this.now + 1, valuetext: `frame ${this.now + 1}, ${label}` };
    for (const [name, value] of Object.entries(attributes)) this.element.setAttribute(`aria-${name}`, value);
  }

  at(event) {
    const box = this.element.getBoundingClientRect();
    const t = Math.floor((event.clientX - box.left) / box.width * this.length);
    return Math.max(0, Math.min(t, this.length - 1));
  }

  // A press selects a frame; a drag hides the frames it passes, or shows them if it began on a hidden one.
  grab(event) {
    this.element.setPointerCapture(event.pointerId);
    const t = this.at(event);
    this.grabbed = { t, show: this.observed[t] === false, before: [...this.observed], moved: false };
    this.dispatchEvent(new Event("grab"));
    this.go(t);
  }

  drag(event) {
    if (!this.grabbed) return;
    const { t: from, show, before } = this.grabbed, to = this.at(event);
    if (to === from && !this.grabbed.moved) return;
    this.grabbed.moved = true;
    const [first, last] = [Math.min(from, to), Math.max(from, to)];
    const observed = before.map((flag, t) => (t >= first && t <= last ? show : flag));
    const differs = observed.some((flag, t) => flag !== this.observed[t]);
    this.observed = observed;
    this.now = to;
    this.dispatchEvent(new Event("move"));
    if (differs) this.changed(); else this.paint();
  }

  drop() {
    this.grabbed = null;
  }
}
