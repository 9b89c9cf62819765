// Zoom and pan of the graph of a flow: the wheel with Ctrl zooms at the pointer, dragging moves, and so
// do the buttons and the keys + - 0 and the arrows. Its frame scrolls by itself without this.
// @ts-check

import { buttons, keys, wheel } from "./zoom.js";

/** The size of the picture; `null` as long as it is the server's. @type {number | null} */
let scale = null;
const [LEAST, MOST] = [0.1, 4];

const picture = () => /** @type {SVGSVGElement | null} */ (document.querySelector("svg[data-graph]"));

/** @param {SVGSVGElement} svg @returns {number[]} */
const sizeOf = (svg) => (svg.getAttribute("viewBox") ?? "0 0 1 1").split(" ").slice(2).map(Number);

/** Gives the picture its size. */
function draw() {
  const svg = picture();
  if (!svg || scale === null) return;
  const size = sizeOf(svg);
  for (const [name, units] of /** @type {[string, number][]} */ ([["width", size[0]], ["height", size[1]]])) {
    const value = String(Math.round(units * scale));
    if (svg.getAttribute(name) !== value) svg.setAttribute(name, value);
  }
}

/** Shows it larger or smaller; what is at a place of the frame stays there.
 * @param {number} factor @param {number} [x] @param {number} [y] */
function zoom(factor, x, y) {
  const svg = picture();
  const frame = svg?.parentElement;
  if (!svg || !frame) return;
  const before = scale ?? 1;
  scale = Math.min(Math.max(before * factor, LEAST), MOST);
  const [left, top] = [x ?? frame.clientWidth / 2, y ?? 0];
  const [at, down] = [(frame.scrollLeft + left) / before, (frame.scrollTop + top) / before];
  draw();
  frame.scrollLeft = at * scale - left;
  frame.scrollTop = down * scale - top;
}

/** Shows all of its width. */
function fit() {
  const svg = picture();
  if (!svg?.parentElement) return;
  zoom(Math.min(svg.parentElement.clientWidth / sizeOf(svg)[0], 1) / (scale ?? 1));
}

wheel((target) => {
  const svg = picture();
  return target instanceof Node && svg?.contains(target) ? svg.parentElement : null;
}, (smaller, x, y) => zoom(smaller ? 0.8 : 1.25, x, y));

document.addEventListener("pointerdown", (event) => {
  const svg = picture();
  const frame = svg?.parentElement;
  if (!svg || !frame || event.button !== 0 || event.pointerType === "touch" || !(event.target instanceof Node) || !svg.contains(event.target)) return;
  const from = { x: event.clientX, y: event.clientY, left: frame.scrollLeft, top: window.scrollY };
  let moved = false;
  const drag = (/** @type {PointerEvent} */ to) => {
    moved ||= Math.hypot(to.clientX - from.x, to.clientY - from.y) > 4;
    if (!moved) return;
    frame.scrollLeft = from.left + from.x - to.clientX;
    window.scrollTo(window.scrollX, from.top + from.y - to.clientY);
  };
  document.addEventListener("pointermove", drag);
  document.addEventListener("pointerup", () => {
    document.removeEventListener("pointermove", drag);
    if (!moved) return;
    // What was dragged is not opened: the click follows at once, if it comes.
    const refuse = (/** @type {Event} */ click) => click.preventDefault();
    document.addEventListener("click", refuse, true);
    setTimeout(() => document.removeEventListener("click", refuse, true));
  }, { once: true });
});

// A link of the picture is not dragged as a link.
document.addEventListener("dragstart", (event) => {
  if (event.target instanceof Element && event.target.closest("svg[data-graph]")) event.preventDefault();
});

/** Moves it in its frame. @param {number} by a share of the frame's width */
function move(by) {
  const frame = picture()?.parentElement;
  if (frame) frame.scrollLeft += frame.clientWidth * by;
}

keys({
  "+": () => zoom(1.25), "-": () => zoom(0.8), 0: fit, ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2),
}, () => picture() !== null);

// The buttons stand before the frame, or before what the server renders anew.
const svg = picture();
const part = svg && (document.querySelector("#run-tab") ?? svg.parentElement);
if (part) {
  buttons(part, [["−", "Show it smaller", () => zoom(0.8)], ["+", "Show it larger", () => zoom(1.25)], ["all", "Show all of its width", fit]]);
  const seen = { subtree: true, childList: true, attributes: true, attributeFilter: ["width", "height"] };
  new MutationObserver(draw).observe(part, seen);
}
