// Zoom and pan of a timeline: the bars and the head of its axis show a part of the time. The wheel with
// Ctrl zooms at the pointer, dragging moves, and so do the buttons and the keys + - 0 and the arrows.
// @ts-check

import { buttons, keys, wheel } from "./zoom.js";

const WIDTH = 1000;
/** The part that is shown, in units of the axis. */
let [from, wide] = [0, WIDTH];

/** @param {number} ms @returns {string} as the server writes it */
function took(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  const s = Math.floor(ms / 1000);
  if (s < 3600) return `${Math.floor(s / 60)}m ${s % 60}s`;
  if (s < 172_800) return `${Math.floor(s / 3600)}h ${Math.floor((s % 3600) / 60)}m`;
  return `${Math.floor(s / 86_400)}d ${Math.floor((s % 86_400) / 3600)}h`;
}

/** The time at a place of an axis. @param {number[][]} bends @param {number} x @returns {number} */
function timeAt(bends, x) {
  const behind = Math.min(Math.max(bends.findIndex(([at]) => at >= x), 1), bends.length - 1);
  const [[x0, ms0], [x1, ms1]] = [bends[behind - 1], bends[behind]];
  return ms0 + (x1 > x0 ? (ms1 - ms0) * Math.min((x - x0) / (x1 - x0), 1) : 0);
}

/** @param {Element} table */
function draw(table) {
  const view = `${from} 0 ${wide} 16`;
  for (const bar of table.querySelectorAll(".bar svg:not(.axis)")) {
    if (bar.getAttribute("viewBox") !== view) bar.setAttribute("viewBox", view);
  }
  const axis = table.querySelector(".axis");
  if (!axis) return;
  const bends = (axis.getAttribute("data-bends") ?? "").split(" ").map((bend) => bend.split(":").map(Number));
  const ticks = [...axis.querySelectorAll(".tick")];
  ticks.forEach((tick, n) => {
    const words = took(timeAt(bends, from + (wide * n) / (ticks.length - 1)));
    if (tick.textContent !== words) tick.textContent = words;
  });
  for (const gap of axis.querySelectorAll(".idle")) {
    const at = (Number(gap.getAttribute("data-x")) - from) / wide;
    const x = at < 0 || at > 1 ? "-999" : `${(at * 100).toFixed(1)}%`;
    if (gap.getAttribute("x") !== x) gap.setAttribute("x", x);
  }
}

function drawAll() {
  for (const table of document.querySelectorAll("[data-zoom]")) draw(table);
}

/** Shows more or less around a place from 0 to 1. @param {number} factor @param {number} [at] */
function zoom(factor, at = 0.5) {
  const middle = from + wide * at;
  wide = Math.min(Math.max(wide * factor, 1), WIDTH);
  move(middle - wide * at - from);
}

/** @param {number} by in units of the axis */
function move(by) {
  from = Math.min(Math.max(from + by, 0), WIDTH - wide);
  drawAll();
}

function reset() {
  [from, wide] = [0, WIDTH];
  drawAll();
}

/** @param {EventTarget | null} target @returns {Element | null} */
const barOf = (target) => (target instanceof Element ? target.closest("[data-zoom] .bar svg") : null);

wheel(barOf, (smaller, x, _, box) => zoom(smaller ? 1.25 : 0.8, x / box.width));

document.addEventListener("pointerdown", (event) => {
  const bar = barOf(event.target);
  if (!bar || event.button !== 0 || wide === WIDTH) return;
  const unit = wide / bar.getBoundingClientRect().width;
  let x = event.clientX;
  event.preventDefault();
  const drag = (/** @type {PointerEvent} */ moved) => {
    move((x - moved.clientX) * unit);
    x = moved.clientX;
  };
  document.addEventListener("pointermove", drag);
  document.addEventListener("pointerup", () => document.removeEventListener("pointermove", drag), { once: true });
});

keys({
  "+": () => zoom(0.5), "-": () => zoom(2), 0: reset,
  ArrowLeft: () => move(-wide / 5), ArrowRight: () => move(wide / 5),
}, (key, target) => {
  if (!document.querySelector("[data-zoom]")) return false;
  return !key.startsWith("Arrow") || (wide < WIDTH && !target?.closest(".json"));
});

// The buttons stand before the table, out of what the server renders anew.
const part = document.querySelector("#run-tab");
if (part?.querySelector("[data-zoom]")) {
  buttons(part, [["−", "Show more time", () => zoom(2)], ["+", "Show less time", () => zoom(0.5)], ["all", "Show all of the time", reset]]);
  const seen = { subtree: true, childList: true, attributes: true, attributeFilter: ["viewBox"] };
  new MutationObserver(() => wide < WIDTH && drawAll()).observe(part, seen);
}
