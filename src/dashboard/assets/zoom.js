// Zooming: the buttons, the keys and the wheel, for the pictures that can be shown larger and smaller.
// @ts-check

/** Puts buttons before a part of the page: each has a label, a title, and what it does.
 * @param {Element} part @param {[string, string, () => void][]} all */
export function buttons(part, all) {
  const line = document.createElement("div");
  line.className = "zoom";
  for (const [label, words, act] of all) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "small";
    button.textContent = label;
    button.title = words;
    button.addEventListener("click", act);
    line.append(button);
  }
  part.before(line);
}

/** Listens to keys that are not typed into something, as long as there is a picture that wants them.
 * @param {Record<string, () => void>} acts @param {(key: string, target: Element | null) => boolean} wants */
export function keys(acts, wants) {
  document.addEventListener("keydown", (event) => {
    const target = event.target instanceof Element ? event.target : null;
    if (event.ctrlKey || event.metaKey || event.altKey || target?.closest("input, textarea, select, dialog")) return;
    if (!Object.hasOwn(acts, event.key) || !wants(event.key, target)) return;
    event.preventDefault();
    acts[event.key]();
  });
}

/** Listens to the wheel with Ctrl over a picture; `zoom` gets the place of the pointer in it.
 * @param {(target: EventTarget | null) => Element | null | undefined} find the element that the place counts in
 * @param {(smaller: boolean, x: number, y: number, box: DOMRect) => void} zoom */
export function wheel(find, zoom) {
  document.addEventListener("wheel", (event) => {
    const element = event.ctrlKey || event.metaKey ? find(event.target) : null;
    if (!element) return;
    event.preventDefault();
    const box = element.getBoundingClientRect();
    zoom(event.deltaY > 0, event.clientX - box.left, event.clientY - box.top, box);
  }, { passive: false });
}
