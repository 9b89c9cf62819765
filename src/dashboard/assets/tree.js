// JSON trees: the row under the pointer or the focus gets buttons that copy its value or its path;
// arrows move between rows. A value that the page has cut is not copied.
// @ts-check

import { copy, say } from "./copy.js";

/** The text that an element shows, or its exact form. @param {Element} shown @param {string} text @returns {string} */
const exact = (shown, text) => (shown.hasAttribute("data-v") ? JSON.parse(shown.getAttribute("data-v") ?? '""') : text);

/** @param {Element} row @returns {Element} */
const rowOf = (row) => (row.nodeName === "DETAILS" ? row.firstElementChild ?? row : row);

/** @param {Element} node @returns {string | null} */
function keyOf(node) {
  const key = rowOf(node).querySelector(":scope > .key");
  return key && exact(key, key.textContent ?? "");
}

/** The JSON text of a node; null if some of it is not on the page. @param {Element} node @param {string} [indent] @returns {string | null} */
function textOf(node, indent = "") {
  if (node.nodeName !== "DETAILS") {
    if (node.hasAttribute("data-cut")) return null;
    const string = node.querySelector(":scope > .string");
    if (!string) return node.lastElementChild?.textContent ?? null;
    return JSON.stringify(exact(string, (string.textContent ?? "").slice(1, -1)));
  }
  const list = node.classList.contains("list");
  const inner = `${indent}  `;
  const parts = [...node.children].slice(1).map((child) => {
    const text = textOf(child, inner);
    return text === null ? null : `${inner}${list ? "" : `${JSON.stringify(keyOf(child))}: `}${text}`;
  });
  const all = Number(node.querySelector(":scope > summary > .dim")?.textContent?.slice(1, -1));
  if (parts.includes(null) || parts.length !== all) return null;
  return `${list ? "[" : "{"}\n${parts.join(",\n")}\n${indent}${list ? "]" : "}"}`;
}

/** The place of a node from the root: `$.steps[0]["a b"]`. @param {Element} node @returns {string} */
function pathOf(node) {
  const above = node.parentElement;
  if (above?.nodeName !== "DETAILS") return "$";
  const key = keyOf(node) ?? "";
  const part = above.classList.contains("list") ? `[${key}]` : /^[A-Za-z_]\w*$/.test(key) ? `.${key}` : `[${JSON.stringify(key)}]`;
  return pathOf(above) + part;
}

const tools = document.createElement("span");
tools.className = "tools";
/** @type {Element | null} */
let at = null;

for (const [label, read] of /** @type {[string, (node: Element) => string | null][]} */ ([["value", textOf], ["path", pathOf]])) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "small";
  button.textContent = label;
  button.title = `Copy the ${label}`;
  button.addEventListener("click", () => {
    const text = at && read(at);
    if (text === null) say(button, "it is cut");
    else copy(text, button);
  });
  tools.append(button);
}

/** @param {EventTarget | null} target */
function show(target) {
  const row = target instanceof Element ? target.closest(".json summary, .json .leaf") : null;
  const tree = row?.closest(".json");
  if (!row || !tree) return;
  at = row.nodeName === "SUMMARY" ? row.parentElement : row;
  if (tools.parentElement !== tree) tree.append(tools);
  tools.style.top = `${row.getBoundingClientRect().top - tree.getBoundingClientRect().top}px`;
  tools.title = at ? pathOf(at) : "";
}

// Rows that move under a pointer at rest are not pointed at.
let [x, y] = [-1, -1];
document.addEventListener("pointermove", (event) => {
  if (event.clientX === x && event.clientY === y) return;
  [x, y] = [event.clientX, event.clientY];
  show(event.target);
});
document.addEventListener("focusin", (event) => show(event.target));

document.addEventListener("keydown", (event) => {
  const row = event.target instanceof Element ? event.target.closest(".json summary, .json .leaf") : null;
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (!row || !by) return;
  const rows = [...(row.closest(".json")?.querySelectorAll("summary, .leaf") ?? [])].filter((it) => it.getClientRects().length > 0);
  const next = rows[rows.indexOf(row) + by];
  if (!(next instanceof HTMLElement)) return;
  event.preventDefault();
  if (next.nodeName !== "SUMMARY") next.tabIndex = -1;
  next.focus();
});
