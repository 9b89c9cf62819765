// Keeps relative times right while a page is open: nothing is rendered anew while nothing happens.
// @ts-check

/** The clock of the host minus the clock of the browser, in milliseconds. */
const ahead = Number(document.querySelector("main")?.getAttribute("data-now") ?? Date.now()) - Date.now();

/** A span in its largest unit, as the host writes it. @param {number} ms @returns {string} */
function coarse(ms) {
  const s = Math.floor(ms / 1000);
  if (s < 120) return `${s} s`;
  if (s < 7200) return `${Math.floor(s / 60)} min`;
  return s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} days`;
}

setInterval(() => {
  if (document.hidden) return;
  const now = Date.now() + ahead;
  for (const time of document.querySelectorAll("time[datetime]")) {
    const ms = Date.parse(time.getAttribute("datetime") ?? "");
    if (Number.isNaN(ms)) continue;
    const ago = now - ms;
    const words = ago < 0 ? `in ${coarse(-ago)}` : ago < 1000 ? "now" : `${coarse(ago)} ago`;
    if (time.textContent !== words) time.textContent = words;
  }
}, 5000);
