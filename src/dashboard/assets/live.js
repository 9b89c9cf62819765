// Swaps the fragments of a page that the server renders anew. Elements are changed in place, so that
// focus, selection, scroll and open details stay.
// @ts-check

const main = document.querySelector("main");
const light = document.getElementById("live");
const url = main?.getAttribute("data-live");

/** The one policy that the page allows: the server's own fragments become markup. */
const policy = /** @type {any} */ (window).trustedTypes?.createPolicy("fragments", {
  createHTML: (/** @type {string} */ text) => text,
});

/** @param {string} html @returns {Element | null} */
function parsed(html) {
  const trusted = policy ? policy.createHTML(html) : html;
  return new DOMParser().parseFromString(trusted, "text/html").body.firstElementChild;
}

/** @param {Node} node @returns {string} */
function keyOf(node) {
  return node instanceof Element ? `${node.nodeName}#${node.id || node.getAttribute("data-key") || ""}` : node.nodeName;
}

/** Gives an element the attributes and children of another. @param {Element} old @param {Element} fresh */
function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return;
  const kept = old.nodeName === "DETAILS" ? "open" : "";
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== kept) old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (name !== kept && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  const editing = old === document.activeElement && /^(INPUT|TEXTAREA|SELECT)$/.test(old.nodeName);
  if (!editing) children(old, fresh);
}

/** @param {Element} old @param {Element} fresh */
function children(old, fresh) {
  let at = old.firstChild;
  for (const wanted of [...fresh.childNodes]) {
    const key = keyOf(wanted);
    let same = at;
    while (same && keyOf(same) !== key) same = same.nextSibling;
    // An element with a key is looked for among all that follow, any other only where it stands.
    if (same && same !== at && (key.endsWith("#") || !(wanted instanceof Element))) same = null;
    if (!same) {
      old.insertBefore(document.importNode(wanted, true), at);
      continue;
    }
    while (at && at !== same) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
    if (same instanceof Element && wanted instanceof Element) morph(same, wanted);
    else if (same.nodeValue !== wanted.nodeValue) same.nodeValue = wanted.nodeValue;
    at = same.nextSibling;
  }
  while (at) {
    const gone = at;
    at = at.nextSibling;
    gone.remove();
  }
}

/** @param {string} state @param {string} text */
function show(state, text) {
  if (!light) return;
  light.setAttribute("data-state", state);
  light.textContent = text;
}

/** Tells the page whether the host answers. @param {boolean} answers */
function tell(answers) {
  document.dispatchEvent(new CustomEvent("host", { detail: answers }));
}

/** @type {EventSource | null} */
let stream = null;
/** The text of each fragment, cut before each tag: what follows names what did not change by its place.
 * @type {Map<string, string[]>} */
const held = new Map();
let over = false;
let wait = 500;

function connect() {
  if (!url || over || stream || document.hidden) return;
  const source = new EventSource(url);
  stream = source;
  held.clear();
  source.addEventListener("open", () => {
    wait = 500;
    show("on", "live");
    tell(true);
  });
  source.addEventListener("fragment", (event) => {
    const { id, html, parts } = JSON.parse(/** @type {MessageEvent} */ (event).data);
    const before = held.get(id) ?? [];
    const texts = (parts ?? [html]).flatMap((/** @type {string | [number, number]} */ part) =>
      typeof part === "string" ? part.split(/(?=<)/) : before.slice(part[0], part[0] + part[1]),
    );
    held.set(id, texts);
    const old = document.getElementById(id);
    const fresh = parsed(texts.join(""));
    if (old && fresh) morph(old, fresh);
  });
  source.addEventListener("end", () => {
    over = true;
    source.close();
    show("", "ended");
  });
  source.addEventListener("error", () => {
    if (over) return;
    source.close();
    if (stream === source) stream = null;
    show("off", "reconnecting …");
    setTimeout(again, wait);
    wait = Math.min(wait * 2, 5000);
  });
}

/** Connects again; a page whose sign-in ended is loaded anew, which leads to the login. */
async function again() {
  if (over || stream) return;
  try {
    const answer = await fetch(location.href, { method: "HEAD", redirect: "manual" });
    if (answer.type === "opaqueredirect") return location.reload();
  } catch {
    // The host is not there yet.
    tell(false);
  }
  connect();
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return connect();
  stream?.close();
  stream = null;
  if (!over && url) show("", "paused");
});

connect();
