// Walks the dashboard in a real Chromium, as a person would. The test that starts it answers on stdin
// when it is asked to kill the daemon. Every page is photographed, checked with axe, and watched for
// dialogs, breaches of the content security policy, and requests to elsewhere.
import { createRequire } from "node:module";
import { mkdirSync, readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const { MODULES, LINK, APPROVER, SHOTS, CHROMIUM } = process.env;
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
  await phone.getByRole("button", { name: "Send the answer" }).click();
  await phone.getByText("Your answer is recorded.").waitFor();

  await desk.getByText('Waits for signal "go"').waitFor();
  check((await desk.evaluate(() => window.stays)) === mark, "the page was loaded again");
  check((await desk.getByLabel("Reason").last().inputValue()) === "half a thought", "what was typed is gone");

  // Kill the daemon: the page reconnects to the next, still signed in, and misses nothing.
  await ask("kill");
  await desk.locator('#live[data-state="off"]').waitFor();
  await photo(desk, "run-reconnecting");
  await ask("start");
  await desk.locator('#live[data-state="on"]').waitFor();
  await desk.locator("summary", { hasText: "Signal" }).click();
  await desk.getByLabel("Payload").fill('{"now": true}');
  await desk.getByRole("button", { name: "Send the signal" }).click();
  await desk.getByText("The signal is recorded.").waitFor();
  await desk.locator("#run-head .status.ok").waitFor();
  await photo(desk, "run-completed-light");

  // Every page, wide and narrow, light and dark.
  const narrow = await person(390, 844, "dark");
  const storage = await desk.context().cookies();
  await narrow.context().addCookies(storage);
  for (const [path, name] of [
    ["/ui", "overview"], ["/ui/runs", "runs"], ["/ui/runs?status=failed", "runs-failed"], [run, "run"], [`${run}?tab=source`, "run-source"],
    [`${run}?tab=data`, "run-data"], [`${run}?tab=events`, "run-events"], [`${run}?tab=artifacts`, "run-artifacts"],
    [`${run}?tab=state`, "run-state"], [`${run}?tab=children`, "run-children"], [`${run}?tab=log`, "run-log"], [`${run}/steps/1`, "step"],
    [`${run}/fork`, "fork"], ["/ui/inbox", "inbox"], ["/ui/inbox?show=answered", "inbox-answered"], ["/ui/blueprints", "blueprints"],
    ["/ui/blueprints/demo", "blueprint"], ["/ui/operators", "operators"], ["/ui/triggers", "triggers"], ["/ui/usage", "usage"],
    ["/ui/state", "state"], ["/ui/state?scope=custom:notes", "state-scope"], ["/ui/state?scope=custom:notes&q=moon", "state-search"],
    ["/ui/state/value?scope=custom:notes&key=plan/moon", "state-value"], ["/ui/tokens", "tokens"], ["/ui/system", "system"],
    ["/ui/runs/nothing", "not-found"],
  ]) {
    await look(desk, path, `${name}-wide`);
    await look(narrow, path, `${name}-narrow-dark`);
  }
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
  await accessible(desk, "keys");
  await desk.keyboard.press("Escape");

  // The switch of colors, and everything by keyboard to the way out.
  await desk.goto(`${origin}/ui`);
  await desk.keyboard.press("Tab");
  check(await desk.evaluate(() => document.activeElement.classList.contains("skip")), "no skip link");
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
