// Walks the dashboard in a real Chromium, as a person would. The test that starts it answers on stdin
// when it is asked to kill the daemon. Every page is photographed, checked with axe, and watched for
// dialogs, breaches of the content security policy, and requests to elsewhere.
import { createRequire } from "node:module";
import { mkdirSync, readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const { MODULES, LINK, APPROVER, ADMIN, SHOTS, CHROMIUM } = process.env;
const require = createRequire(`${MODULES}/`);
const { chromium } = require("playwright-core");
const axe = readFileSync(require.resolve("axe-core"), "utf8");
mkdirSync(SHOTS, { recursive: true });

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const origin = new URL(LINK).origin;
const troubles = [];
let photos = 0;

function check(is, what) {
  if (!is) throw new Error(what);
}

async function ask(word) {
  console.log(word);
  const { value } = await lines.next();
  check(value === "done", `${word}: ${value}`);
}

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });

async function person(width, height, colorScheme) {
  // axe is put into pages by the test alone; the policy of the pages stays on.
  const context = await browser.newContext({ viewport: { width, height }, colorScheme });
  const page = await context.newPage();
  page.on("dialog", (dialog) => troubles.push(`a dialog: ${dialog.message()}`) && dialog.dismiss());
  page.on("pageerror", (error) => troubles.push(`an error: ${error.message}`));
  page.on("console", (message) => {
    const text = message.text();
    if (/Content Security Policy|Trusted Type/i.test(text)) troubles.push(`${page.url()}: ${text}`);
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(origin)) troubles.push(`a request to ${request.url()}`);
  });
  return page;
}

async function photo(page, name) {
  photos += 1;
  await page.screenshot({ path: `${SHOTS}/${name}.png`, fullPage: true });
}

async function accessible(page, name) {
  const found = await page.evaluate(async (source) => {
    if (!window.axe) (0, eval)(source);
    return (await window.axe.run(document, { resultTypes: ["violations"] })).violations;
  }, axe).catch(async () => {
    // The policy refuses eval; the debugger's own world is not bound by it.
    const session = await page.context().newCDPSession(page);
    const { executionContextId } = await session.send("Page.createIsolatedWorld", {
      frameId: (await session.send("Page.getFrameTree")).frameTree.frame.id,
    });
    const run = async (expression) => (await session.send("Runtime.evaluate", {
      expression, contextId: executionContextId, awaitPromise: true, returnByValue: true,
    })).result.value;
    await run(`${axe}; 0`);
    return JSON.parse(await run("axe.run(document, { resultTypes: ['violations'] }).then((it) => JSON.stringify(it.violations))"));
  });
  for (const it of found.filter((it) => ["serious", "critical"].includes(it.impact))) {
    troubles.push(`${name}: axe: ${it.id}: ${it.nodes.slice(0, 3).map((node) => `${node.target} ${node.failureSummary}`).join("; ")}`);
  }
}

async function fits(page, name) {
  const [wide, view] = await page.evaluate(() => [document.documentElement.scrollWidth, innerWidth]);
  if (wide > view + 1) troubles.push(`${name}: ${wide} px wide in a view of ${view}`);
}

async function look(page, path, name) {
  await page.goto(origin + path);
  await accessible(page, name);
  await fits(page, name);
  await photo(page, name);
}

/** The part of the time that the bars of a timeline show. */
const zoomed = (page) => page.locator("[data-zoom] td.bar svg").first().getAttribute("viewBox");

try {
  // Sign in by the link: its code goes from the address at once.
  const desk = await person(1440, 900, "light");
  await desk.goto(LINK);
  await desk.waitForURL(`${origin}/ui`);
  check(!(await desk.content()).includes("once_"), "the code stays in the page");
  await accessible(desk, "overview-empty");
  await photo(desk, "overview-empty-light");
  // The link is used up.
  const second = await person(1440, 900, "light");
  await second.goto(LINK);
  await second.getByRole("alert").waitFor();
  await photo(second, "login-refused");
  await second.context().close();

  // Start a run from its form.
  await desk.getByRole("link", { name: "Blueprints" }).click();
  await photo(desk, "blueprints-light");
  await desk.getByRole("link", { name: "demo", exact: true }).click();
  await accessible(desk, "blueprint");
  await photo(desk, "blueprint-light");
  await desk.getByLabel("Who").fill("<b>moon</b> \u202e");
  await desk.getByLabel("times").fill("5");
  await desk.getByRole("button", { name: "Start" }).click();
  await desk.waitForURL(/\/ui\/runs\/run_/);
  const run = new URL(desk.url()).pathname;

  // It is live: the answer of another person arrives without a reload.
  await desk.getByText("Waits for ask").waitFor();
  await desk.locator('#live[data-state="on"]').waitFor();
  await desk.locator("summary", { hasText: "Cancel" }).click();
  await desk.getByLabel("Reason").last().fill("half a thought");
  await accessible(desk, "run");
  await photo(desk, "run-waiting-light");
  // What is zoomed stays so when the timeline is rendered anew.
  await desk.getByRole("button", { name: "+" }).click();
  const mark = await desk.evaluate(() => (window.stays = Math.random()));

  // Approve on a phone, with a token pasted into the login.
  const phone = await person(390, 844, "dark");
  await phone.goto(`${origin}/ui/inbox`);
  check(phone.url().includes("/ui/login?next="), `not at the login: ${phone.url()}`);
  await phone.getByLabel("Token").fill(APPROVER);
  await photo(phone, "login-phone-dark");
  await phone.getByRole("button", { name: "Sign in" }).click();
  await phone.waitForURL(`${origin}/ui/inbox`);
  await accessible(phone, "inbox-phone");
  await fits(phone, "inbox-phone");
  await photo(phone, "inbox-phone-dark");
  await phone.locator("#inbox a").first().click();
  await phone.getByLabel(/Ship it/).selectOption("true");
  await phone.getByLabel("note").fill("fine");
  await accessible(phone, "task-phone");
  await fits(phone, "task-phone");
  await photo(phone, "task-phone-dark");
  await phone.getByRole("button", { name: "Send the answer" }).dblclick();
  await phone.getByText("Your answer is recorded.").waitFor();

  await desk.getByText('Waits for signal "go"').waitFor();
  check((await desk.evaluate(() => window.stays)) === mark, "the page was loaded again");
  check((await desk.getByLabel("Reason").last().inputValue()) === "half a thought", "what was typed is gone");

  check((await zoomed(desk)) === "250 0 500 16", `the zoom is lost: ${await zoomed(desk)}`);

  // Kill the daemon: the page reconnects to the next, still signed in, and misses nothing.
  const still = await desk.context().newPage();
  await still.goto(`${origin}/ui/blueprints/demo`);
  await desk.bringToFront();
  await ask("kill");
  await desk.locator('#live[data-state="off"]').waitFor();
  await desk.locator("#away").getByText("moonswarm does not answer").waitFor();
  await accessible(desk, "run-reconnecting");
  await photo(desk, "run-reconnecting");
  // A page without a stream says so too, and a form keeps what was typed.
  await still.getByLabel("Who").fill("kept");
  await still.getByRole("button", { name: "Start" }).click();
  await still.locator("#away").getByText("moonswarm does not answer").waitFor();
  check(still.url().endsWith("/ui/blueprints/demo"), `it left for ${still.url()}`);
  await photo(still, "blueprint-away");
  await ask("start");
  await desk.locator('#live[data-state="on"]').waitFor();
  check((await desk.locator("#away").count()) === 0, "it still says that the host is away");
  await still.getByRole("button", { name: "Start" }).click();
  await still.waitForURL(/\/ui\/runs\/run_/);
  await still.goto(`${still.url().split("?")[0]}?tab=data`);
  await still.locator("#run-tab").getByText("kept").waitFor();
  await still.close();
  await desk.locator("summary", { hasText: "Signal" }).click();
  await desk.getByLabel("Payload").fill('{"now": true}');
  await desk.getByRole("button", { name: "Send the signal" }).dblclick();
  await desk.getByText("The signal is recorded.").waitFor();
  await desk.locator("#run-head .status.ok").waitFor();
  await photo(desk, "run-completed-light");

  // Every page, wide and narrow, light and dark.
  const narrow = await person(390, 844, "dark");
  const storage = await desk.context().cookies();
  await narrow.context().addCookies(storage);
  for (const [path, name] of [
    ["/ui", "overview"], ["/ui/runs", "runs"], ["/ui/runs?status=failed", "runs-failed"], [run, "run"], [`${run}?tab=source`, "run-source"], [`${run}?tab=graph`, "run-graph"],
    [`${run}?tab=data`, "run-data"], [`${run}?tab=events`, "run-events"], [`${run}?tab=artifacts`, "run-artifacts"],
    [`${run}?tab=state`, "run-state"], [`${run}?tab=children`, "run-children"], [`${run}?tab=log`, "run-log"], [`${run}/steps/1`, "step"],
    [`${run}/fork`, "fork"], ["/ui/inbox", "inbox"], ["/ui/inbox?show=answered", "inbox-answered"], ["/ui/blueprints", "blueprints"],
    ["/ui/blueprints/demo", "blueprint"], ["/ui/blueprints/demo?tab=graph", "blueprint-graph"], ["/ui/blueprints/nightly?tab=versions", "blueprint-versions"],
    ["/ui/blueprints/demo?tab=stubs", "blueprint-stubs"], ["/ui/operators", "operators"], ["/ui/triggers", "triggers"], ["/ui/usage", "usage"],
    ["/ui/state", "state"], ["/ui/state?scope=custom:notes", "state-scope"], ["/ui/state?scope=custom:notes&q=moon", "state-search"],
    ["/ui/state/value?scope=custom:notes&key=plan/moon", "state-value"], ["/ui/tokens", "tokens"], ["/ui/system", "system"],
    ["/ui/runs/nothing", "not-found"],
  ]) {
    await look(desk, path, `${name}-wide`);
    await look(narrow, path, `${name}-narrow-dark`);
  }
  // The timeline is zoomed and moved by buttons, keys, wheel and pointer.
  await desk.goto(origin + run);
  const bar = await desk.locator("[data-zoom] td.bar svg").first().boundingBox();
  const at = [bar.x + bar.width / 4, bar.y + bar.height / 2];
  await desk.keyboard.press("+");
  check((await zoomed(desk)) === "250 0 500 16", `+: ${await zoomed(desk)}`);
  await desk.keyboard.press("ArrowRight");
  check((await zoomed(desk)) === "350 0 500 16", `right: ${await zoomed(desk)}`);
  await desk.mouse.move(...at);
  await desk.mouse.down();
  await desk.mouse.move(at[0] + bar.width / 10, at[1], { steps: 4 });
  await desk.mouse.up();
  check(Math.abs(parseFloat(await zoomed(desk)) - 300) < 2, `dragged: ${await zoomed(desk)}`);
  const first = await desk.locator(".axis .tick").first().textContent();
  check(first !== "0 ms", "the axis does not follow");
  await desk.keyboard.press("0");
  check((await zoomed(desk)) === "0 0 1000 16", `0: ${await zoomed(desk)}`);
  await desk.keyboard.down("Control");
  await desk.mouse.wheel(0, -100);
  await desk.keyboard.up("Control");
  await desk.waitForFunction(() => document.querySelector("[data-zoom] td.bar svg").getAttribute("viewBox").endsWith(" 0 800 16"));
  check(Math.abs(parseFloat(await zoomed(desk)) - 70) < 2, `it zooms at the pointer: ${await zoomed(desk)}`);
  await photo(desk, "run-zoomed-light");
  await desk.getByRole("button", { name: "all" }).click();
  check((await zoomed(desk)) === "0 0 1000 16", `all: ${await zoomed(desk)}`);

  // So is the graph; what is dragged is not opened, what is clicked is.
  await narrow.goto(`${origin}${run}?tab=graph`);
  const wide = () => narrow.locator("svg.graph").getAttribute("width").then(Number);
  const scrolled = () => narrow.locator("svg.graph").evaluate((it) => it.parentElement.scrollLeft);
  const before = await wide();
  for (let n = 0; n < 4; n += 1) await narrow.getByRole("button", { name: "+" }).click();
  check((await wide()) > before * 2, `${before} became ${await wide()}`);
  const box = await narrow.locator("svg.graph a").first().boundingBox();
  const left = await scrolled();
  await narrow.mouse.move(200, box.y + box.height / 2);
  await narrow.mouse.down();
  await narrow.mouse.move(150, box.y + box.height / 2, { steps: 4 });
  await narrow.mouse.up();
  check(Math.abs((await scrolled()) - left - 50) < 3, `scrolled from ${left} to ${await scrolled()}`);
  check(narrow.url().includes("tab=graph"), "what was dragged was opened");
  await photo(narrow, "run-graph-zoomed-dark");
  const moved = await scrolled();
  await narrow.keyboard.press("ArrowRight");
  check((await scrolled()) > moved, `right of ${moved} is ${await scrolled()}`);
  await narrow.keyboard.press("ArrowLeft");
  check(Math.abs((await scrolled()) - moved) < 3, `left of that is ${await scrolled()}`);
  await narrow.getByRole("button", { name: "all" }).click();
  check((await wide()) <= 390, `${await wide()} px`);
  await narrow.locator("svg.graph a", { hasText: "run ask" }).click();
  await narrow.waitForURL(/\/steps\/\d+$/);
  await narrow.goBack();
  await narrow.locator("svg.graph a", { hasText: "wait go" }).focus();
  await narrow.keyboard.press("Enter");
  await narrow.waitForURL(/\/steps\/\d+$/);

  // Two versions are compared; a line of the graph is found in the source.
  await desk.goto(`${origin}/ui/blueprints/nightly`);
  await desk.getByRole("link", { name: "What changed in this one" }).click();
  await desk.locator(".diff .added").getByText("0 7 * * *").waitFor();
  await accessible(desk, "blueprint-diff");
  await photo(desk, "blueprint-diff-light");
  await narrow.goto(desk.url());
  await accessible(narrow, "blueprint-diff-narrow");
  await fits(narrow, "blueprint-diff-narrow");
  await photo(narrow, "blueprint-diff-narrow-dark");
  await desk.goto(`${origin}/ui/blueprints/demo?tab=graph`);
  await desk.locator("svg.graph a", { hasText: "run ask" }).click();
  await desk.waitForURL(/#L\d+$/);
  check(await desk.evaluate(() => document.querySelector(":target").textContent.includes("ctx:run(\"ask\"")), "the line is another");

  // The locals of the flow, from step to step; only for a role that may look.
  await desk.goto(`${origin}${run}?tab=source&at=2`);
  await desk.locator("#locals").getByText("run.inspect").waitFor();
  const admin = await person(1440, 900, "light");
  await admin.goto(`${origin}/ui/login?next=${encodeURIComponent(`${run}?tab=source`)}`);
  await admin.getByLabel("Token").fill(ADMIN);
  await admin.getByRole("button", { name: "Sign in" }).click();
  await admin.getByRole("link", { name: "locals" }).first().click();
  await admin.locator("#locals").getByText("Locals at step").waitFor();
  await admin.goto(`${origin}${run}?tab=source&at=2`);
  const local = (name) => admin.locator("#locals tr", { has: admin.getByRole("cell", { name, exact: true }) }).first();
  check((await local("i").textContent()).includes("2"), `i is ${await local("i").textContent()}`);
  await admin.getByRole("link", { name: "← step 1" }).click();
  await admin.getByRole("heading", { name: "Locals at step 1" }).waitFor();
  check((await local("i").textContent()).includes("1"), `i is ${await local("i").textContent()}`);
  check(await admin.locator(".listing tr.moment").count() === 1, "the line of the moment is not lit");
  await local("input").locator("summary").first().click();
  await accessible(admin, "run-locals");
  await photo(admin, "run-locals-light");
  await admin.getByRole("link", { name: "step 2 →" }).press("Enter");
  await admin.getByRole("heading", { name: "Locals at step 2" }).waitFor();
  await narrow.context().clearCookies();
  await narrow.context().addCookies(await admin.context().cookies());
  await look(narrow, `${run}?tab=source&at=2`, "run-locals-narrow-dark");
  await admin.context().close();

  // The plan of a fork stays when its JSON is broken, and the fork is made once it is right.
  await desk.goto(`${origin}${run}/fork?step=2`);
  await desk.getByLabel("does its work again with the input below").check();
  const input = await desk.getByLabel("Input of the step").inputValue();
  await desk.getByLabel("Input of the step").fill(`${input} {`);
  await desk.getByRole("button", { name: "Show what is kept" }).click();
  await desk.getByText("this is not JSON").waitFor();
  await desk.getByText("without the edits that were refused").waitFor();
  await accessible(desk, "fork-wrong");
  await photo(desk, "fork-wrong-light");
  await desk.getByLabel("Input of the step").fill('{"i": 9}');
  await desk.getByRole("button", { name: "Fork", exact: true }).click();
  await desk.getByText("This is the new run.").waitFor();

  // A file is previewed, and a value of a tree is copied with its path.
  await desk.goto(`${origin}${run}?tab=artifacts`);
  await desk.locator("#run-tab td a").first().click();
  await desk.locator("#preview").getByText("hello").waitFor();
  await accessible(desk, "run-preview");
  await photo(desk, "run-preview-light");
  await desk.context().grantPermissions(["clipboard-read", "clipboard-write"]);
  await desk.goto(`${origin}${run}/steps/1`);
  const leaf = desk.locator(".json .leaf").filter({ hasText: "i:" }).first();
  await leaf.hover();
  await desk.getByTitle("Copy the path").click();
  check((await desk.evaluate(() => navigator.clipboard.readText())) === "$.i", "the path is not copied");
  await desk.locator(".json summary").first().hover();
  await desk.getByTitle("Copy the value").click();
  const copied = JSON.parse(await desk.evaluate(() => navigator.clipboard.readText()));
  check(copied.i === 1 && copied.who === "<b>moon</b> \u202e", `copied ${JSON.stringify(copied)}`);

  // A page over plain HTTP from another machine has no such clipboard: buttons copy there as well, or say
  // which key does.
  const plain = await desk.context().newPage();
  await plain.addInitScript(() => Object.defineProperty(Navigator.prototype, "clipboard", { value: undefined }));
  await plain.goto(`${origin}/ui/inbox?show=answered`);
  await plain.locator("details.command summary").click();
  const copying = plain.locator("button[data-copy]").first();
  await copying.click();
  await plain.getByRole("button", { name: "copied" }).waitFor();
  check((await plain.locator("main textarea").count()) === 0, "the field of the copy stays");
  check(await copying.evaluate((it) => it === document.activeElement), "the focus is lost");
  await plain.locator("summary", { hasText: "Find by text" }).click();
  await plain.getByLabel("Text", { exact: true }).fill("");
  await plain.keyboard.press("Control+V");
  const pasted = await plain.getByLabel("Text", { exact: true }).inputValue();
  check(pasted === "moonswarm inbox --answered", `pasted ${pasted}`);
  await plain.evaluate(() => (document.execCommand = () => false));
  await copying.click();
  await plain.getByRole("button", { name: "press Ctrl-C" }).waitFor();
  const field = plain.getByLabel("Copy the selected text");
  const chosen = await field.evaluate((it) => it.value.slice(it.selectionStart, it.selectionEnd));
  check(chosen === "moonswarm inbox --answered", `selected ${chosen}`);
  await accessible(plain, "copy-by-hand");
  await fits(plain, "copy-by-hand");
  await photo(plain, "copy-by-hand-light");
  await plain.getByLabel("Text", { exact: true }).focus();
  check((await field.count()) === 0, "the field stays when it is left");
  await plain.close();

  // What hostile runs wrote is shown, and does nothing.
  for (const link of await desk.goto(`${origin}/ui/runs?blueprint=hostile`).then(() => desk.locator("#runs td a").all())) {
    const page = await desk.context().newPage();
    page.on("dialog", (dialog) => troubles.push(`a dialog: ${dialog.message()}`) && dialog.dismiss());
    await page.goto(origin + (await link.getAttribute("href")));
    await page.getByText("bad <b>thing</b>").first().waitFor();
    await photo(page, "run-hostile");
    await page.goto(`${page.url()}/steps/2`);
    await photo(page, "step-hostile");
    await page.close();
  }

  // The palette and the keys.
  await desk.goto(`${origin}/ui/runs`);
  await desk.keyboard.press("j");
  check(await desk.evaluate(() => document.activeElement.closest("tr") !== null), "j reaches no row");
  await desk.keyboard.press("Control+k");
  await desk.getByLabel("Go to", { exact: true }).fill("blueprints");
  await accessible(desk, "palette");
  await photo(desk, "palette-light");
  await desk.keyboard.press("Enter");
  await desk.waitForURL(`${origin}/ui/blueprints`);
  await desk.keyboard.press("?");
  for (const words of ["+ / -", "← / →", "↑ / ↓"]) await desk.locator("dialog dt", { hasText: words }).waitFor();
  await accessible(desk, "keys");
  await photo(desk, "keys-light");
  await desk.keyboard.press("Escape");
  await desk.locator("dialog").waitFor({ state: "detached" });
  // Any text leads to the lists that have it.
  await desk.keyboard.press("Control+k");
  await desk.getByLabel("Go to", { exact: true }).fill("ship it");
  await desk.getByRole("link", { name: "Tasks with “ship it”" }).click();
  await desk.waitForURL(`${origin}/ui/inbox?q=ship%20it`);

  // The switch of colors, and everything by keyboard to the way out.
  await desk.goto(`${origin}/ui`);
  await desk.keyboard.press("Tab");
  const [skips, focused] = await desk.evaluate(() => {
    const { classList, outerHTML } = document.activeElement;
    return [classList.contains("skip"), outerHTML.slice(0, 200)];
  });
  check(skips, `no skip link, but ${focused}`);
  await desk.locator(".who > summary").focus();
  await desk.keyboard.press("Enter");
  await desk.getByRole("button", { name: "dark" }).press("Enter");
  await desk.waitForSelector('html[data-theme="dark"]');
  await accessible(desk, "overview-dark");
  await photo(desk, "overview-dark");
  await desk.locator(".who > summary").click();
  await photo(desk, "menu-dark");
  await desk.getByRole("button", { name: "Sign out" }).click();
  await desk.waitForURL(/\/ui\/login/);
  await desk.goto(`${origin}/ui/runs`);
  check(desk.url().includes("/ui/login"), "still signed in");
  check(troubles.length === 0, troubles.join("\n"));
  console.log(`walked ${photos}`);
} catch (error) {
  console.log(`failed ${JSON.stringify(`${error.stack ?? error}\n${troubles.join("\n")}`)}`);
} finally {
  await browser.close();
}
process.exit(0);
