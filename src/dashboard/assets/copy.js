// Copies texts: the buttons of commands and ids, and what other modules ask for. A page over plain HTTP from
// another machine has no `navigator.clipboard`; there the text is selected and copied as an edit.
// @ts-check

/** The time for which a button says what it did, in milliseconds. */
const SAID = 1200;

/** Copies by the selection of a field that is there for a moment. If the browser refuses that as well, the
 * field stays behind the button until it loses the focus: the text is selected, and the key copies it.
 * @param {string} text @param {HTMLElement} button @returns {boolean} */
function selected(text, button) {
  const field = document.createElement("textarea");
  field.value = text;
  field.readOnly = true;
  field.rows = 2;
  field.setAttribute("aria-label", "Copy the selected text with Ctrl-C or ⌘-C");
  button.after(field);
  field.select();
  const done = document.execCommand("copy");
  if (done) {
    field.remove();
    button.focus({ preventScroll: true });
  } else {
    field.addEventListener("blur", () => field.remove());
  }
  return done;
}

/** Copies a text, and says on the button how that went. @param {string} text @param {HTMLElement} button */
export async function copy(text, button) {
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {
    done = selected(text, button);
  }
  say(button, done ? "copied" : "press Ctrl-C");
}

/** @type {WeakMap<HTMLElement, string>} The labels of the buttons that say something else for a moment. */
const labels = new WeakMap();

/** Says something on a button for a moment. @param {HTMLElement} button @param {string} words */
export function say(button, words) {
  const label = labels.get(button) ?? button.textContent ?? "";
  labels.set(button, label);
  button.textContent = words;
  setTimeout(() => (button.textContent = label), SAID);
}

document.addEventListener("click", (event) => {
  const button = event.target instanceof Element ? event.target.closest("button[data-copy]") : null;
  const text = button?.getAttribute("data-copy");
  if (button instanceof HTMLElement && text) copy(text, button);
});
