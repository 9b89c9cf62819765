// Against a daemon that this file plays: `npm test`.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { afterEach, test } from "node:test";

import { Failed, Refused, Result, Skip, Worker } from "../dist/index.js";

const running = [];
const results = "/v1/worker/results";

/**
 * Gives out tasks, and notes what comes back. `trouble` may answer a request otherwise, or later. `follows` returns the
 * inputs of the tasks that an output brings about. An `older` daemon refuses `lease` beside results.
 */
async function daemon(inputs, options = {}) {
  const { lease = 30, trouble = () => undefined, follows = () => [], older = false, now = Date.now } = options;
  const it = {
    left: [...inputs], results: new Map(), beats: 0, renewed: [], cancel: new Set(), counts: {},
    // The requests for tasks, by themselves and beside results; how many tasks were given, and the most at a time.
    polls: [], beside: [], given: 0, atOnce: 0,
  };
  const deadline = (seconds) => new Date(now() + seconds * 1_000).toISOString();
  const task = (n, input) => ({
    task: `task_${n}`,
    handle: `wh_${n}`,
    deadline: deadline(lease),
    prompt: {
      run: "run_1", agent: "a", attempt: 1, prompt: "p", system: null, input,
      context: { idempotency_key: `k${n}` }, output_schema: null,
    },
  });
  const routes = {
    "/v1/worker/lease": (body) => {
      it.polls.push(body);
      return it.left.length > 0 ? [200, it.give(body)] : [204];
    },
    [results]: ({ results: handedIn, lease: wanted }) => {
      if (wanted !== undefined) it.beside.push(wanted);
      if (wanted !== undefined && older) return [422, { code: "unknown_field", detail: "unknown field `lease`" }];
      for (const { handle, result } of handedIn) {
        it.results.set(handle, result);
        it.left.push(...follows(result.output));
      }
      const items = handedIn.map(() => ({ status: 200, accepted: true, repeated: false }));
      return [200, wanted === undefined ? { items } : { items, leased: it.give(wanted) }];
    },
    "/v1/worker/heartbeats": ({ handles }) => {
      it.beats += 1;
      it.renewed.push(handles);
      const kept = (handle) => ({ status: 200, deadline: deadline(lease), cancel: it.cancel.has(handle) });
      return [200, { items: handles.map(kept) }];
    },
  };
  it.give = (wanted) => {
    const taken = it.left.splice(0, wanted.max).map((input) => task(it.given++, input));
    it.atOnce = Math.max(it.atOnce, it.given - it.results.size);
    return taken;
  };
  const server = createServer(async (request, response) => {
    let text = "";
    for await (const part of request) text += part;
    it.counts[request.url] = (it.counts[request.url] ?? 0) + 1;
    const found = await trouble(request.url, it.counts[request.url]);
    if (found === "cut") return request.socket.destroy();
    const [status, answer] = found ?? routes[request.url]?.(JSON.parse(text)) ?? [404, { code: "no_route" }];
    if (status === 204) await new Promise((resolve) => setTimeout(resolve, 20));
    response.writeHead(status).end(typeof answer === "string" ? answer : JSON.stringify(answer));
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  it.url = `http://127.0.0.1:${server.address().port}`;
  running.push(async () => {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  });
  return it;
}

function start(it, work, options = {}) {
  const worker = new Worker({
    url: it.url, token: "t", queue: "q", work, signals: false, pause: [5, 50], log: () => {}, ...options,
  });
  const run = worker.run();
  running.unshift(async () => {
    worker.stop({ now: true });
    await run.catch(() => {});
  });
  return { worker, run };
}

async function until(is, what) {
  for (let n = 0; n < 2_000; n += 1) {
    if (is()) return;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  assert.fail(what);
}

/** What waits for its `until` waits for a call of its `go`. */
function gate() {
  const held = {};
  held.until = new Promise((resolve) => (held.go = resolve));
  return held;
}

/**
 * Returns the time of the first of `count` heartbeats for a lease that ends at `ends`, and the pauses between them.
 * Each is answered with 503 and the headers that `asked` returns for its number.
 *
 * Time passes as fast as pauses begin, and by `takes` while the lease is read. Nothing else passes it.
 */
async function beats(t, { ends, count, asked, takes = 0 }) {
  let now = 0;
  const { setTimeout: real } = globalThis;
  t.mock.method(performance, "now", () => now);
  t.mock.method(globalThis, "setTimeout", (then, ms) =>
    ms < 100 || ms > 20_000 ? real(then, ms) : real(() => ((now += ms), then()), 1));
  const [at, prompt] = [[], { context: { idempotency_key: "k" } }];
  const date = new Date(0).toUTCString();
  const lease = { task: "task_0", handle: "wh_0", deadline: new Date(ends).toISOString(), prompt };
  t.mock.method(globalThis, "fetch", async (url) => {
    if (url.endsWith("heartbeats")) {
      at.push(now);
      return new Response("{}", { status: 503, headers: asked(at.length) });
    }
    const answer = new Response(JSON.stringify([lease]), { headers: { date } });
    const text = answer.text.bind(answer);
    answer.text = () => ((now += takes), text());
    return answer;
  });
  const held = gate();
  const { worker, run } = start({ url: "http://localhost" }, () => held.until);
  await until(() => at.length >= count, `${count} heartbeats`);
  worker.stop({ now: true });
  held.go();
  await run;
  return [at[0], ...at.slice(1, count).map((time, n) => Math.round(time - at[n]))];
}

afterEach(async () => {
  for (const end of running.splice(0)) await end();
});

test("each way to end a task is reported as what it is", async () => {
  const it = await daemon(["plain", "skip", "fail", "bug", "odd", "full"]);
  const { worker, run } = start(it, async (task) => {
    if (task.input === "skip") throw new Skip("nothing to do");
    if (task.input === "fail") throw new Failed("busy", { retryable: true, data: [1] });
    if (task.input === "bug") throw new TypeError("x");
    if (task.input === "odd") return 1n;
    if (task.input === "full") return new Result(7, { usage: { input: 3 }, effects: [{ type: "log" }] });
    return { key: task.idempotencyKey };
  }, { maxInFlight: 3 });
  await until(() => it.results.size === 6, "six results");
  worker.stop();
  await run;
  const found = (n) => it.results.get(`wh_${n}`);
  assert.deepEqual(found(0), { output: { key: "k0" } });
  assert.deepEqual(found(1), { skip: "nothing to do" });
  assert.deepEqual(found(2), { ok: false, error: { message: "busy", retryable: true, data: [1] } });
  assert.match(found(3).error.message, /TypeError: x/);
  assert.match(found(4).error.message, /TypeError/);
  assert.deepEqual(found(5), { output: 7, usage: { input: 3 }, effects: [{ type: "log" }] });
});

test("whatever a task throws or returns is reported and the worker goes on", async () => {
  const it = await daemon(["mute", "odd data", "odd usage", "large", "plain"]);
  start(it, (task) => {
    if (task.input === "mute") throw Object.create(null);
    if (task.input === "odd data") throw new Failed("busy", { retryable: true, data: 1n });
    if (task.input === "odd usage") return new Result(1, { usage: { input: 1n } });
    if (task.input === "large") return "x".repeat(8 << 20);
    return task.input;
  });
  await until(() => it.results.size === 5, "five results");
  const error = (n) => it.results.get(`wh_${n}`).error;
  assert.equal(error(0).message, "object");
  assert.deepEqual(error(1), { message: "busy", retryable: true, data: "1" });
  assert.match(error(2).message, /TypeError/);
  assert.match(error(3).message, /at most 8388608/);
  assert.deepEqual(it.results.get("wh_4"), { output: "plain" });
});

test("a daemon that is away is waited for and nothing is lost", async () => {
  // 502 and 504 are of a proxy before it.
  const [cut, busy, bad, late] = ["cut", [503, { code: "stopping" }], [502], [504]];
  const away = { "/v1/worker/lease": [cut, bad, undefined, late], [results]: [cut, busy, undefined, bad, late] };
  const trouble = (path, n) => away[path]?.[n - 1];
  const it = await daemon([...Array(40).keys()], { trouble });
  start(it, (task) => task.input, { maxInFlight: 8 });
  await until(() => it.results.size === 40, "forty results");
  assert.equal(new Set([...it.results.values()].map((result) => result.output)).size, 40);
});

test("leases are renewed and a task that is not wanted is told", async () => {
  const it = await daemon(["long"], { lease: 1 });
  let told = false;
  start(it, (task) => new Promise((resolve) => {
    task.signal.addEventListener("abort", () => {
      told = true;
      resolve(1);
    });
  }));
  await until(() => it.beats >= 3, "heartbeats");
  it.cancel.add("wh_0");
  await until(() => told, "the task is told");
  assert.equal(it.results.size, 0, "nobody wants its result");
});

test("a task that is not wanted is not renewed any more", async () => {
  const it = await daemon(["lost", "kept"], { lease: 1 });
  const held = gate();
  let told = false;
  start(it, (task) => {
    if (task.input === "lost") task.signal.addEventListener("abort", () => (told = true));
    return held.until;
  }, { maxInFlight: 2 });
  await until(() => it.renewed.some((handles) => handles.length === 2), "both are renewed");
  it.cancel.add("wh_0");
  await until(() => told, "the task is told");
  const seen = it.beats;
  await until(() => it.beats >= seen + 2, "two heartbeats more");
  for (const handles of it.renewed.slice(seen)) assert.deepEqual(handles, ["wh_1"]);
  held.go();
});

test("heartbeats that fail are told once and so is their end", async () => {
  const troubles = ["cut", [503, { code: "stopping" }], [502]];
  const trouble = (path, n) => (path.endsWith("heartbeats") ? troubles[n - 1] : undefined);
  const it = await daemon(["long"], { lease: 2, trouble });
  const said = [];
  const held = gate();
  start(it, () => held.until, { log: (line) => said.push(line) });
  await until(() => it.beats >= 2, "heartbeats");
  held.go();
  assert.equal(said.length, 2, said.join("\n"));
  assert.match(said[0], /^heartbeats: /);
  assert.equal(said[1], "heartbeats: they work again");
});

test("pauses after trouble grow, and leave time before the lease ends", async (t) => {
  const asked = (n) => (n === 7 ? { "retry-after": "9" } : {});
  const [first, ...pauses] = await beats(t, { ends: 61_000, count: 11, asked });
  // The lease had 40 s left at the first of them, and 6.6 s at the last.
  assert.deepEqual([first, ...pauses], [20_000, 200, 400, 800, 1_600, 3_200, 5_000, 9_000, 5_000, 4_933, 3_289]);
});

test("a lease that has ended is tried each third of its time, as of the headers of its answer", async (t) => {
  const asked = () => ({ "retry-after": "30" });
  const [first, ...pauses] = await beats(t, { ends: 5_000, count: 12, asked, takes: 1_000 });
  // The lease had 3 s once its answer was read, and ends at 4 s. A daemon that was away gives it one more such time.
  assert.deepEqual([first, ...pauses.slice(0, 3)], [2_000, 667, 444, 296]);
  assert.deepEqual(pauses.slice(-4), [1_000, 1_000, 1_000, 1_000]);
});

test("a heartbeat that hangs leaves time for the next", async () => {
  const [held, path] = [gate(), "/v1/worker/heartbeats"];
  const it = await daemon(["long"], { lease: 3, trouble: (asked) => (asked === path ? held.until : undefined) });
  start(it, () => held.until);
  await until(() => it.counts[path] === 1, "a heartbeat");
  const began = performance.now();
  await until(() => it.counts[path] >= 2, "another one");
  assert.ok(performance.now() - began < 3_000);
  held.go();
});

test("an answer that is none of a daemon is trouble like any other", async () => {
  const odd = [[200, "<html>back soon</html>"], [200, { status: "ok" }], [200, "null"]];
  const away = {
    "/v1/worker/lease": odd.slice(0, 2),
    [results]: odd,
    "/v1/worker/heartbeats": [...odd, [200], [200, { items: null }]],
  };
  const it = await daemon(["one", "two"], { lease: 2, trouble: (path, n) => away[path]?.[n - 1] });
  const held = gate();
  const { worker, run } = start(it, () => held.until);
  await until(() => it.beats > 0, "a heartbeat");
  held.go();
  await until(() => it.results.size === 2, "two results");
  worker.stop();
  await run;
});

test("a helper that throws ends the worker with the reason", async () => {
  const it = await daemon(["long"], { lease: 1, trouble: (path) => (path.endsWith("heartbeats") ? "cut" : undefined) });
  const held = gate();
  const before = process.listenerCount("SIGTERM");
  const log = () => {
    throw new RangeError("no log");
  };
  const { run } = start(it, () => held.until, { log, signals: true });
  await assert.rejects(run, /no log/);
  assert.equal(process.listenerCount("SIGTERM"), before);
  held.go();
});

test("results of one request are measured in bytes", async () => {
  const [first, rest] = [gate(), gate()];
  const trouble = (path, n) => (path === results && n === 1 ? first.until : undefined);
  const it = await daemon(["small", "large", "large"], { trouble });
  let begun = 0;
  start(it, async (task) => {
    begun += 1;
    if (task.input === "small") return 1;
    await rest.until;
    return "\u00e9".repeat(1_500_000);
  }, { maxInFlight: 3 });
  await until(() => it.counts[results] === 1 && begun === 3, "the first result comes");
  rest.go();
  await new Promise((resolve) => setImmediate(resolve));
  first.go();
  await until(() => it.results.size === 3, "three results");
  assert.equal(it.counts[results], 3);
});

for (const wrong of [-3_600_000, 3_600_000]) {
  test(`leases are renewed in time by a clock that is wrong by ${wrong} ms`, async (t) => {
    const right = Date.now;
    const it = await daemon(["long"], { lease: 4, now: () => right() });
    t.mock.method(Date, "now", () => right() + wrong);
    const held = gate();
    const began = performance.now();
    start(it, () => held.until);
    await until(() => it.beats > 0, "a heartbeat");
    const took = performance.now() - began;
    held.go();
    assert.ok(took > 900 && took < 4_000, String(took));
  });
}

test("a stop finishes what is in work and takes nothing new", async () => {
  const it = await daemon(["one", "two"]);
  const held = gate();
  let began = false;
  const { worker, run } = start(it, async (task) => {
    began = true;
    await held.until;
    return task.input;
  });
  await until(() => began, "the task begins");
  worker.stop();
  held.go();
  await run;
  assert.deepEqual([...it.results], [["wh_0", { output: "one" }]]);
  assert.deepEqual(it.left, ["two"]);
  assert.deepEqual(it.beside, [], "the result is handed in alone");
});

test("a chain of steps needs no lease request a step", async () => {
  const it = await daemon([1], { follows: (output) => (output <= 20 ? [output] : []) });
  const polls = [];
  start(it, (task) => {
    polls.push(it.polls.length);
    return task.input + 1;
  }, { name: "w", labels: { gpu: "true" } });
  await until(() => it.results.size === 20, "twenty results");
  assert.deepEqual(it.results.get("wh_19"), { output: 21 });
  assert.deepEqual(polls, Array(20).fill(1));
  const same = { queue: "q", max: 1, prompts: true, worker: "w", labels: { gpu: "true" } };
  assert.deepEqual(it.polls[0], { ...same, wait: "20s" });
  assert.deepEqual(it.beside, Array(20).fill(same));
});

test("tasks in work are never more than the slots", async () => {
  const it = await daemon(Array(100).keys(), { follows: (output) => (output < 100 ? [output + 100] : []) });
  start(it, (task) => task.input, { maxInFlight: 5 });
  await until(() => it.results.size === 200, "two hundred results");
  assert.equal(it.atOnce, 5);
  assert.ok(it.beside.length > 0);
});

test("the slot of a result under way is not asked for twice", async () => {
  const held = gate();
  const it = await daemon(["one"], { trouble: (path) => (path === results ? held.until : undefined) });
  start(it, (task) => task.input, { maxInFlight: 2 });
  await until(() => it.counts[results] === 1, "the result comes");
  const seen = it.polls.length;
  // The first of them may have been under way already.
  await until(() => it.polls.length >= seen + 2, "two polls");
  it.left.push("two", "three");
  await until(() => it.given >= 2, "a task is given");
  held.go();
  await until(() => it.results.size === 3, "three results");
  assert.deepEqual(it.polls.slice(1, seen + 2).map((poll) => poll.max), Array(seen + 1).fill(1));
  assert.equal(it.atOnce, 2);
});

test("tasks that an answer brings to a worker that drains are worked off", async () => {
  const held = gate();
  const it = await daemon(["one", "two", "three"], { trouble: (path) => (path === results ? held.until : undefined) });
  const { worker, run } = start(it, (task) => task.input);
  await until(() => it.counts[results] === 1, "the result comes");
  worker.stop();
  held.go();
  await run;
  assert.deepEqual([...it.results], [["wh_0", { output: "one" }], ["wh_1", { output: "two" }]]);
  assert.deepEqual([it.beside.length, it.left], [1, ["three"]]);
});

test("a worker that gives up begins nothing more", async () => {
  const it = await daemon(["one", "two", "three"]);
  const begun = [];
  const { worker, run } = start(it, (task) => (begun.push(task.input), worker.stop({ now: true })), { maxInFlight: 3 });
  await run;
  assert.deepEqual(begun, ["one"]);
});

test("results that are sent again by a worker that drains ask for nothing", async () => {
  const trouble = (path, n) => {
    if (path !== results || n > 1) return undefined;
    worker.stop();
    return "cut";
  };
  const it = await daemon(["one", "two"], { trouble });
  const { worker, run } = start(it, (task) => task.input);
  await run;
  assert.deepEqual([...it.results], [["wh_0", { output: "one" }]]);
  assert.deepEqual(it.beside, []);
});

test("an older daemon gets the same results without the lease", async () => {
  const it = await daemon(Array(40).keys(), { older: true });
  start(it, (task) => task.input, { maxInFlight: 4 });
  await until(() => it.results.size === 40, "forty results");
  assert.equal(new Set([...it.results.values()].map((result) => result.output)).size, 40);
  assert.equal(it.beside.length, 1, "it is not asked again");
  assert.equal(it.counts["/v1/worker/result"], undefined);
});

for (const [what, none] of [["no", []], ["no list of", undefined]]) {
  test(`slots are free again after an answer with ${what} tasks`, async () => {
    const it = await daemon(Array(9).keys());
    const { give } = it;
    it.give = (wanted) => (wanted.wait === undefined ? none : give(wanted));
    const said = [];
    start(it, (task) => task.input, { maxInFlight: 2, log: (line) => said.push(line) });
    await until(() => it.results.size === 9, "nine results");
    assert.deepEqual(said, []);
  });
}

test("a token that may not lease ends the worker", async () => {
  const it = await daemon([], { trouble: () => [403, { code: "forbidden_scope", detail: "no" }] });
  const { run } = start(it, () => 1);
  await assert.rejects(run, (error) => error instanceof Refused && error.code === "forbidden_scope");
});

test("a worker whose token has ended finishes what it has", async () => {
  const held = gate();
  const ended = [401, { code: "unauthenticated", detail: "no" }];
  const trouble = (path, n) => (path === "/v1/worker/lease" && n > 1 ? ended : undefined);
  const it = await daemon(["one", "two"], { trouble });
  const { run } = start(it, async (task) => {
    await held.until;
    return task.input;
  }, { maxInFlight: 3, log: held.go });
  await assert.rejects(run, (error) => error instanceof Refused && error.code === "unauthenticated");
  assert.deepEqual([...it.results], [["wh_0", { output: "one" }], ["wh_1", { output: "two" }]]);
  assert.deepEqual(it.beside, []);
});
