// The throughput of the last minutes, on a canvas.

import { rate, since } from "./tables.js";

const SECONDS = 300, LEAST = 60;
const LINES = [["read", "--read"], ["written", "--written"], ["rdma", "--rdma"]];

export class Chart {
  constructor(canvas) {
    this.canvas = canvas;
    this.points = [];
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  add(time, rates) {
    this.points.push({ time, ...rates });
    while (this.points.length && this.points[0].time < time - SECONDS) this.points.shift();
    this.draw();
  }

  draw() {
    const { canvas, points } = this;
    const scale = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const top = 16, bottom = height - 18;
    const most = nice(Math.max(1024 * 1024, ...points.flatMap((point) => LINES.map(([name]) => point[name]))));
    const end = points.length ? points[points.length - 1].time : 0;
    const span = points.length ? Math.max(LEAST, end - points[0].time) : LEAST;
    const x = (time) => width - ((end - time) / span) * width;
    const y = (value) => bottom - (value / most) * (bottom - top);
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = style.getPropertyValue("--dim");
    context.strokeStyle = style.getPropertyValue("--line");
    for (const part of [0, 0.5, 1]) {
      context.beginPath();
      context.moveTo(0, y(most * part));
      context.lineTo(width, y(most * part));
      context.stroke();
      if (part) context.fillText(rate(most * part), 4, y(most * part) - 4);
    }
    context.fillText(`${since(span)} ago`, 4, height - 4);
    context.textAlign = "right";
    context.fillText("now", width - 4, height - 4);
    context.textAlign = "left";
    for (const [name, color] of LINES) {
      context.strokeStyle = context.fillStyle = style.getPropertyValue(color);
      context.lineWidth = 2;
      // What moved by RDMA is part of what was read and written.
      context.setLineDash(name === "rdma" ? [5, 4] : []);
      context.lineJoin = "round";
      context.beginPath();
      points.forEach((point, index) => context[index ? "lineTo" : "moveTo"](x(point.time), y(point[name])));
      context.stroke();
      if (points.length > 1) {
        context.lineTo(x(end), bottom);
        context.lineTo(x(points[0].time), bottom);
        context.globalAlpha = 0.08;
        context.fill();
        context.globalAlpha = 1;
      }
    }
    context.setLineDash([]);
    const last = points[points.length - 1];
    if (last) canvas.setAttribute("aria-label", `Throughput now: read ${rate(last.read)}, written ${rate(last.written)}, by RDMA ${rate(last.rdma)}`);
  }
}

function nice(value) {
  let step = 1024;
  while (step < value) step *= 2;
  return step;
}
