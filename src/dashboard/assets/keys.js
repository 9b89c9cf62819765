// Keys: j and k move through a list, Enter opens, g and a letter goes to a page, Ctrl-K (or ⌘-K) opens
// the palette, ? lists the keys. Everything they do is a link of the page as well.
// @ts-check

/** @param {string} tag @param {string} [text] @returns {HTMLElement} */
function element(tag, text) {
  const made = document.createElement(tag);
  if (text) made.textContent = text;
  return made;
}

// On a narrow screen the pages stand in one line: the one that is open is in view. `scrollIntoView` would
// move the place from which Tab starts, past the link that skips to the content.
const menu = document.querySelector("header nav");
const current = menu?.querySelector("[aria-current]");
if (menu && current) {
  const [all, one] = [menu.getBoundingClientRect(), current.getBoundingClientRect()];
  menu.scrollLeft += one.left + one.width / 2 - all.left - all.width / 2;
}

/** The places of the palette: the pages, and the links of this page. @returns {{ name: string, href: string }[]} */
function places() {
  const links = [...document.querySelectorAll("header nav a, .tabs a, main td a, main li a")];
  const seen = new Set();
  return links.flatMap((link) => {
    const href = link.getAttribute("href") ?? "";
    const name = (link.textContent ?? "").trim();
    if (!href.startsWith("/ui") || !name || seen.has(href)) return [];
    seen.add(href);
    return [{ name, href }];
  });
}

/** Where a whole id leads. @param {string} text @returns {string | null} */
function byId(text) {
  if (/^run_[a-z2-7]{26}(\/\d+)?$/.test(text)) return `/ui/runs/${text.replace("/", "/steps/")}`;
  if (/^task_[a-z2-7]{26}$/.test(text)) return `/ui/inbox/${text}`;
  return null;
}

/** @param {HTMLElement} content @param {string} label @returns {HTMLDialogElement} */
function dialog(content, label) {
  const box = /** @type {HTMLDialogElement} */ (element("dialog"));
  box.setAttribute("aria-label", label);
  box.append(content);
  document.body.append(box);
  box.addEventListener("close", () => box.remove());
  box.addEventListener("click", (event) => event.target === box && box.close());
  box.showModal();
  return box;
}

function palette() {
  const all = places();
  const form = element("form");
  form.setAttribute("method", "dialog");
  const input = /** @type {HTMLInputElement} */ (element("input"));
  input.type = "text";
  input.placeholder = "A page, a name, or an id";
  input.setAttribute("aria-label", "Go to");
  const list = element("ul");
  form.append(input, list);
  const fill = () => {
    const words = input.value.trim().toLowerCase();
    const found = all.filter((place) => `${place.name} ${place.href}`.toLowerCase().includes(words)).slice(0, 12);
    const direct = byId(words);
    if (direct) found.unshift({ name: words, href: direct });
    // Any other text is looked for where names and texts are, if these pages are there for this sign-in.
    else if (words) {
      for (const [page, what] of [["/ui/runs", "Runs"], ["/ui/inbox", "Tasks"], ["/ui/blueprints", "Blueprints"]]) {
        const href = `${page}?q=${encodeURIComponent(input.value.trim())}`;
        if (document.querySelector(`header nav a[href="${page}"]`)) found.push({ name: `${what} with “${input.value.trim()}”`, href });
      }
    }
    list.replaceChildren(...found.map((place) => {
      const item = element("li");
      const link = /** @type {HTMLAnchorElement} */ (element("a", place.name));
      link.href = place.href;
      item.append(link);
      return item;
    }));
  };
  input.addEventListener("input", fill);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    list.querySelector("a")?.click();
  });
  fill();
  dialog(form, "Palette");
  input.focus();
}

const HELP = [
  ["Ctrl-K", "go to a page, a name or an id"], ["j / k", "next and previous row"], ["Enter", "open the row"], ["x", "select the row"],
  ["g o", "overview"], ["g r", "runs"], ["g i", "inbox"], ["g b", "blueprints"],
  ["+ / -", "more and less of a timeline or a graph"], ["0", "all of it"], ["← / →", "move it when it is zoomed"],
  ["↑ / ↓", "previous and next row of a JSON tree"], ["?", "these keys"],
];

function help() {
  const list = element("dl");
  for (const [key, words] of HELP) list.append(element("dt", key), element("dd", words));
  list.tabIndex = 0;
  dialog(list, "Keys");
}

/** Moves the focus to the link of another row. @param {number} by */
function move(by) {
  const links = [...document.querySelectorAll("main tbody tr")].flatMap((row) => row.querySelector("a") ?? []);
  const row = document.activeElement?.closest("tr");
  const at = links.findIndex((link) => row?.contains(link));
  const next = at < 0 ? (by > 0 ? 0 : links.length - 1) : at + by;
  links[next]?.focus();
}

document.addEventListener("change", (event) => {
  const all = event.target instanceof HTMLInputElement ? event.target : null;
  const name = all?.getAttribute("data-all");
  if (!all || !name) return;
  for (const box of all.closest("table")?.querySelectorAll(`input[name="${name}"]`) ?? []) {
    if (box instanceof HTMLInputElement) box.checked = all.checked;
  }
});

/** Selects the row that has the focus, or no longer. */
function pick() {
  const box = document.activeElement?.closest("tr")?.querySelector("td input[type=checkbox]");
  if (box instanceof HTMLInputElement) box.checked = !box.checked;
}

/** @type {Record<string, string>} */
const GO = { o: "/ui", r: "/ui/runs", i: "/ui/inbox", b: "/ui/blueprints" };
let going = false;

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    return document.querySelector("dialog[open]") ? undefined : palette();
  }
  const target = event.target instanceof Element ? event.target : null;
  const busy = target?.closest("input, textarea, select, dialog");
  if (busy || event.ctrlKey || event.metaKey || event.altKey) return;
  const to = going && Object.hasOwn(GO, event.key) ? GO[event.key] : null;
  going = event.key === "g";
  if (to) location.assign(to);
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "x") pick();
  else if (event.key === "?") help();
});
