// Makes the pictures of docs/dashboard.md: `UPDATE_PICTURES=1 cargo nextest run --test dashboard -E 'test(pictures)'`.
import { createRequire } from "node:module";
import { writeFileSync } from "node:fs";

const { MODULES, CHROMIUM, ORIGIN, TOKEN, FRESH, FRESH_TOKEN, RUNS, PICTURES } = process.env;
const { chromium } = createRequire(`${MODULES}/`)("playwright-core");
const runs = JSON.parse(RUNS);

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });

async function person(width, height, origin = ORIGIN, token = TOKEN) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme: "light", reducedMotion: "reduce" });
  const page = await context.newPage();
  await page.goto(`${origin}/ui/login`);
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.waitForURL(`${origin}/ui`);
  return page;
}

/** Photographs what is seen of a page, from an element on. */
async function picture(page, path, name, from) {
  await page.goto(new URL(path, page.url()).href);
  if (from) await page.locator(from).first().evaluate((it) => window.scrollTo(0, it.getBoundingClientRect().top + window.scrollY - 16));
  const session = await page.context().newCDPSession(page);
  const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality: 70 });
  writeFileSync(`${PICTURES}/${name}.webp`, Buffer.from(data, "base64"));
}

await picture(await person(1200, 760, FRESH, FRESH_TOKEN), "/ui", "gallery");
const desk = await person(1200, 760);
await picture(desk, "/ui", "overview");
await picture(desk, `/ui/runs/${runs.done}`, "timeline");
await picture(desk, `/ui/runs/${runs.waits}?tab=graph`, "graph", ".tabs");
await picture(desk, `/ui/runs/${runs.waits}?tab=source&at=6`, "source", "#locals");
await picture(desk, "/ui/blueprints/release", "blueprint");
const phone = await person(390, 780);
await phone.goto(`${ORIGIN}/ui/inbox`);
await picture(phone, new URL(await phone.locator("#inbox a").first().getAttribute("href"), ORIGIN).pathname, "inbox");
await browser.close();
