// The timeline: which frame is shown, and which frames the model may see.

export class Timeline extends EventTarget {
  constructor(element) {
    super();
    this.element = element;
    this.seen = [];
    this.ahead = 0;
    this.now = 0;
    element.addEventListener("pointerdown", (event) => this.grab(event));
    element.addEventListener("pointermove", (event) => this.drag(event));
    for (const end of ["pointerup", "pointercancel"]) element.addEventListener(end, () => this.drop());
  }

  get length() {
    return this.seen.length + this.ahead;
  }

  // What each kind of answer may see: everything, only what precedes the first gap, what is not hidden.
  masks() {
    const beyond = Array(this.ahead).fill(false);
    const gap = this.seen.indexOf(false);
    return {
      inferred: [...this.seen.map(() => true), ...beyond],
      forecast: gap > 0 ? [...this.seen.map((_, t) => t < gap), ...beyond] : null,
      interpolated: gap >= 0 && this.seen.includes(true) ? [...this.seen, ...beyond] : null,
    };
  }

  load(seen, ahead) {
    this.seen = seen;
    this.ahead = ahead;
    this.now = Math.min(this.now, this.length - 1);
    this.element.replaceChildren(...Array.from({ length: this.length }, () => document.createElement("i")));
    this.paint();
  }

  hide(rule) {
    this.seen = this.seen.map((_, t) => !rule(t, this.seen.length));
    this.changed();
  }

  toggle(t) {
    if (t >= this.seen.length) return;
    this.seen[t] = !this.seen[t];
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
      const beyond = t >= this.seen.length;
      cell.className = [beyond ? "beyond" : this.seen[t] ? "" : "hidden", t === this.now ? "now" : ""].join(" ");
    });
    const said = this.now >= this.seen.length ? "beyond the end" : this.seen[this.now] ? "seen" : "hidden";
    const spoken = { valuemax: this.length, valuenow: this.now + 1, valuetext: `frame ${this.now + 1}, ${said}` };
    for (const [name, value] of Object.entries(spoken)) this.element.setAttribute(`aria-${name}`, value);
  }

  at(event) {
    const box = this.element.getBoundingClientRect();
    const t = Math.floor((event.clientX - box.left) / box.width * this.length);
    return Math.max(0, Math.min(t, this.length - 1));
  }

  // A press moves to a frame; a drag hides the frames it passes, or shows them if it began on a hidden one.
  grab(event) {
    this.element.setPointerCapture(event.pointerId);
    const t = this.at(event);
    this.grabbed = { t, show: this.seen[t] === false, before: [...this.seen], moved: false };
    this.dispatchEvent(new Event("grab"));
    this.go(t);
  }

  drag(event) {
    if (!this.grabbed) return;
    const { t: from, show, before } = this.grabbed, to = this.at(event);
    if (to === from && !this.grabbed.moved) return;
    this.grabbed.moved = true;
    const [first, last] = [Math.min(from, to), Math.max(from, to)];
    const seen = before.map((flag, t) => (t >= first && t <= last ? show : flag));
    const differs = seen.some((flag, t) => flag !== this.seen[t]);
    this.seen = seen;
    this.now = to;
    this.dispatchEvent(new Event("move"));
    if (differs) this.changed(); else this.paint();
  }

  drop() {
    this.grabbed = null;
  }
}
