// Says so when the host does not answer: a page that stands there still looks alive. A form is sent only
// once the host answers, so that nothing that was typed is lost; a second click does not send it again.
// @ts-check

const main = document.querySelector("main");
/** Where a page without a stream of its own asks. It needs no sign-in, so asking keeps none alive. */
const here = document.querySelector('link[rel="icon"]')?.getAttribute("href") ?? "/ui/login";
const PAUSE = 10_000;
/** The time in which nothing more is sent after a form: its answer is the next page, or a download. */
const SENT = 3_000;

/** @type {HTMLElement | null} */
let banner = null;
const loaded = new Date();
const streams = main?.hasAttribute("data-live") ?? false;

/** @param {boolean} answers */
function show(answers) {
  if (answers) {
    banner?.remove();
    banner = null;
  } else if (!banner && main) {
    banner = document.createElement("div");
    banner.id = "away";
    banner.className = "banner bad";
    banner.setAttribute("role", "alert");
    // A page with a stream was right until now, any other when it was loaded.
    const since = streams ? new Date() : loaded;
    const words = document.createElement("p");
    words.textContent = `moonswarm does not answer. What you see is as it was at ${since.toLocaleTimeString()}. `
      + "Nothing is lost: runs go on when it is started again. This page tries again by itself.";
    const line = document.createElement("code");
    line.textContent = "moonswarm serve";
    banner.append(words, line);
    main.prepend(banner);
  }
}

/** Asks whether the host answers. @returns {Promise<boolean>} */
async function ask() {
  try {
    await fetch(here, { method: "HEAD", cache: "no-store" });
    show(true);
    return true;
  } catch {
    show(false);
    return false;
  }
}

// A page with a stream hears from it; every other one asks now and then.
document.addEventListener("host", (event) => show(/** @type {CustomEvent<boolean>} */ (event).detail));
setInterval(() => {
  if (!document.hidden && (banner || !streams)) ask();
}, PAUSE);

/** The form that may leave now. @type {HTMLFormElement | null} */
let passing = null;
let asking = false;
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (!(form instanceof HTMLFormElement) || form.method !== "post" || event.defaultPrevented) return;
  if (passing === form) {
    passing = null;
    return;
  }
  event.preventDefault();
  if (asking) return;
  asking = true;
  if (!(await ask())) {
    asking = false;
    banner?.scrollIntoView({ block: "nearest" });
    return;
  }
  setTimeout(() => (asking = false), SENT);
  passing = form;
  form.requestSubmit(/** @type {SubmitEvent} */ (event).submitter);
});

export {};
