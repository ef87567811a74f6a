// One curve on a canvas: this run over the champion, the starts of later attempts marked, a reading under the pointer.
const PLOT = { left: 44, right: 10, top: 8, bottom: 18 };

function niceTicks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 2.5, 5, 10].map((part) => part * power).find((part) => part >= rough) || power * 10;
  const ticks = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-6; at += step) ticks.push(Math.abs(at) < step * 1e-6 ? 0 : at);
  return ticks;
}

function shortStep(step) {
  if (step >= 1e6) return `${Number((step / 1e6).toPrecision(3))}M`;
  return step >= 1e4 ? `${Number((step / 1e3).toPrecision(3))}k` : count(step);
}

// The range that most points lie in: one wild point at the start must not press the rest flat.
function rangeOf(curves) {
  const values = curves.flatMap((curve) => curve.map((point) => point[1])).sort((a, b) => a - b);
  if (!values.length) return [0, 1];
  const cut = values.length > 60 ? Math.floor(values.length * 0.01) : 0;
  let [low, high] = [values[0], values[values.length - 1 - cut]];
  if (low === high) [low, high] = [low - Math.abs(low || 1) * 0.1, high + Math.abs(high || 1) * 0.1];
  const room = (high - low) * 0.06;
  return [low - room, high + room];
}

function nearest(curve, step) {
  let low = 0;
  let high = curve.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (curve[middle][0] < step) low = middle;
    else high = middle;
  }
  return Math.abs(curve[low][0] - step) <= Math.abs(curve[high][0] - step) ? curve[low] : curve[high];
}

class Chart {
  constructor(name, testId) {
    this.canvas = h("canvas", { role: "img" });
    this.value = h("b", { class: "num" });
    this.legend = h("span", { class: "legend" });
    this.caption = h("figcaption", {}, h("span", { class: "plot-name", title: name }, name), this.value, this.legend);
    this.node = h("figure", { class: "plot", id: testId }, this.caption, this.canvas);
    this.name = name;
    this.curve = [];
    this.before = null;
    this.marks = [];
    this.pointer = null;
    this.size = [0, 0];
    this.canvas.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    // Front ends hide, detach and windows outputs; a canvas comes back empty, so draw when it is seen again.
    this.resized = new ResizeObserver(([entry]) => {
      this.size = [Math.round(entry.contentRect.width), Math.round(entry.contentRect.height)];
      this.draw();
    });
    this.seen = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && this.draw());
    this.resized.observe(this.canvas);
    this.seen.observe(this.canvas);
  }

  stop() {
    this.resized.disconnect();
    this.seen.disconnect();
  }

  point(x) {
    this.pointer = x;
    this.draw();
  }

  set(curve, before, marks) {
    const end = (points) => (points && points.length ? `${points.length}:${points[points.length - 1]}` : "");
    const shape = [end(curve), end(before && before.curve), before && before.label, JSON.stringify(marks || [])].join("|");
    if (shape === this.shape) return; // most updates are about something else
    this.shape = shape;
    this.curve = curve || [];
    this.before = before;
    this.marks = marks || [];
    this.describe();
    this.draw();
  }

  describe() {
    const last = this.curve[this.curve.length - 1];
    const best = this.curve.reduce((low, point) => (point[1] < low[1] ? point : low), this.curve[0] || [0, NaN]);
    const beside = this.before ? `, over ${this.before.label}` : "";
    setAttr(
      this.canvas,
      "aria-label",
      last
        ? `${this.name}: ${number(last[1])} at step ${count(last[0])}, lowest ${number(best[1])} at step ${count(best[0])}${beside}`
        : `${this.name}: no values yet`,
    );
  }

  draw() {
    const [width, height] = this.size;
    if (width < 40 || height < 40) return;
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== width * ratio) this.canvas.width = width * ratio;
    if (this.canvas.height !== height * ratio) this.canvas.height = height * ratio;
    const pen = this.canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    const curves = [this.curve, this.before ? this.before.curve : []].filter((curve) => curve.length);
    const ink = this.ink();
    pen.font = `10.5px ${ink.font}`;
    if (!curves.length) {
      pen.fillStyle = ink.muted;
      pen.textAlign = "center";
      pen.fillText("no values yet", width / 2, height / 2);
      return;
    }
    const map = this.scale(curves, width, height);
    this.grid(pen, map, ink, width, height);
    this.attempts(pen, map, ink, height);
    pen.save();
    pen.beginPath();
    pen.rect(PLOT.left, PLOT.top - 4, width - PLOT.left - PLOT.right + 4, height - PLOT.top - PLOT.bottom + 8);
    pen.clip();
    if (this.before) this.line(pen, map, this.before.curve, ink.champion, [7, 4], 1.2);
    this.line(pen, map, this.curve, ink.accent, [], 1.6);
    pen.restore();
    this.reading(pen, map, ink, height);
  }

  // To ask for a style in the middle of a paint makes the browser lay out what was written so far, for each chart.
  ink() {
    return this.canvas.getRootNode().ink || inkOf(this.canvas);
  }

  scale(curves, width, height) {
    const steps = curves.flatMap((curve) => [curve[0][0], curve[curve.length - 1][0]]);
    let [first, last] = [Math.min(...steps), Math.max(...steps)];
    if (first === last) [first, last] = [first - 1, last + 1];
    const [low, high] = rangeOf(curves);
    const [across, down] = [width - PLOT.left - PLOT.right, height - PLOT.top - PLOT.bottom];
    return {
      first, last, low, high,
      x: (step) => PLOT.left + ((step - first) / (last - first)) * across,
      y: (value) => PLOT.top + ((high - value) / (high - low)) * down,
      step: (x) => first + ((x - PLOT.left) / across) * (last - first),
    };
  }

  grid(pen, map, ink, width, height) {
    pen.strokeStyle = ink.line;
    pen.fillStyle = ink.muted;
    pen.lineWidth = 1;
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    for (const tick of niceTicks(map.low, map.high, 4)) {
      const y = Math.round(map.y(tick)) + 0.5;
      pen.beginPath();
      pen.moveTo(PLOT.left, y);
      pen.lineTo(width - PLOT.right, y);
      pen.stroke();
      pen.fillText(number(tick, 3), PLOT.left - 6, y);
    }
    pen.textBaseline = "alphabetic";
    let free = PLOT.left - 8;
    for (const tick of niceTicks(map.first, map.last, Math.max(2, Math.floor(width / 90)))) {
      const text = shortStep(tick);
      const half = pen.measureText(text).width / 2;
      const x = Math.min(Math.max(map.x(tick), PLOT.left + half), width - 2 - half);
      if (x - half < free + 8) continue;
      pen.textAlign = "center";
      pen.fillText(text, x, height - 4);
      free = x + half;
    }
  }

  attempts(pen, map, ink, height) {
    pen.strokeStyle = ink.warn;
    pen.fillStyle = ink.warn;
    pen.textAlign = "left";
    for (const [attempt, step] of this.marks) {
      if (step < map.first || step > map.last) continue;
      const x = Math.round(map.x(step)) + 0.5;
      pen.setLineDash([2, 3]);
      pen.beginPath();
      pen.moveTo(x, PLOT.top);
      pen.lineTo(x, height - PLOT.bottom);
      pen.stroke();
      pen.setLineDash([]);
      pen.fillText(`#${attempt}`, x + 3, PLOT.top + 8);
    }
  }

  line(pen, map, curve, colour, dash, thickness) {
    if (!curve.length) return;
    pen.strokeStyle = colour;
    pen.lineWidth = thickness;
    pen.lineJoin = "round";
    pen.setLineDash(dash);
    pen.beginPath();
    curve.forEach(([step, value], at) => {
      const y = Math.max(PLOT.top - 20, map.y(value));
      if (at) pen.lineTo(map.x(step), y);
      else pen.moveTo(map.x(step), y);
    });
    if (curve.length === 1) pen.arc(map.x(curve[0][0]), map.y(curve[0][1]), 1.5, 0, 7);
    pen.stroke();
    pen.setLineDash([]);
  }

  // The value under the pointer, else the newest, both in the caption: nothing covers the curve.
  reading(pen, map, ink, height) {
    const last = this.curve[this.curve.length - 1];
    const point = this.pointer !== null && this.curve.length ? nearest(this.curve, map.step(this.pointer)) : last;
    setText(this.value, point ? number(point[1]) : "");
    let beside = "";
    if (this.before && this.before.curve.length) {
      const other = point ? nearest(this.before.curve, point[0]) : this.before.curve[this.before.curve.length - 1];
      beside = `${this.before.label} ${number(other[1])}`;
    }
    if (this.pointer !== null && point) beside = `step ${count(point[0])}${beside ? ` · ${beside}` : ""}`;
    setText(this.legend, beside);
    setAttr(this.legend, "title", beside || null);
    this.legend.classList.toggle("dashed", Boolean(this.before) && this.pointer === null);
    if (!point) return;
    if (this.pointer !== null) {
      pen.strokeStyle = ink.muted;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(Math.round(map.x(point[0])) + 0.5, PLOT.top);
      pen.lineTo(Math.round(map.x(point[0])) + 0.5, height - PLOT.bottom);
      pen.stroke();
    }
    pen.fillStyle = ink.accent;
    pen.strokeStyle = ink.bg;
    pen.lineWidth = 1.5;
    pen.beginPath();
    pen.arc(map.x(point[0]), map.y(point[1]), 3, 0, 7);
    pen.fill();
    pen.stroke();
  }
}
