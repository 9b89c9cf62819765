// Against a daemon that this file plays: `npm test`.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { afterEach, test } from "node:test";

import { Failed, Refused, Result, Skip, Worker } from "../dist/index.js";

const deadline = (seconds) => new Date(Date.now() + seconds * 1_000).toISOString();
const running = [];

/** Gives out tasks, and notes what comes back. `trouble` may answer a request otherwise. */
async function daemon(inputs, { lease = 30, trouble = () => undefined } = {}) {
  const it = { left: [...inputs.entries()], results: new Map(), beats: 0, cancel: new Set(), counts: {} };
  const task = ([n, input]) => ({
    task: `task_${n}`,
    handle: `wh_${n}`,
    deadline: deadline(lease),
    prompt: {
      run: "run_1", agent: "a", attempt: 1, prompt: "p", system: null, input,
      context: { idempotency_key: `k${n}` }, output_schema: null,
    },
  });
  const routes = {
    "/v1/worker/lease": (body) => (it.left.length > 0 ? [200, it.left.splice(0, body.max).map(task)] : [204]),
    "/v1/worker/results": ({ results }) => {
      for (const { handle, result } of results) it.results.set(handle, result);
      return [200, { items: results.map(() => ({ status: 200, accepted: true, repeated: false })) }];
    },
    "/v1/worker/heartbeats": ({ handles }) => {
      it.beats += 1;
      const kept = (handle) => ({ status: 200, deadline: deadline(lease), cancel: it.cancel.has(handle) });
      return [200, { items: handles.map(kept) }];
    },
  };
  const server = createServer(async (request, response) => {
    let text = "";
    for await (const part of request) text += part;
    it.counts[request.url] = (it.counts[request.url] ?? 0) + 1;
    const found = trouble(request.url, it.counts[request.url]);
    if (found === "cut") return request.socket.destroy();
    const [status, answer] = found ?? routes[request.url](JSON.parse(text));
    if (status === 204) await new Promise((resolve) => setTimeout(resolve, 20));
    response.writeHead(status).end(answer === undefined ? undefined : JSON.stringify(answer));
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

test("a daemon that is away is waited for and nothing is lost", async () => {
  const away = { "/v1/worker/lease": [1, 3], "/v1/worker/results": [1, 2, 4] };
  const trouble = (path, n) =>
    !away[path]?.includes(n) ? undefined : n % 2 ? "cut" : [503, { code: "stopping" }];
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

test("a stop finishes what is in work and takes nothing new", async () => {
  const it = await daemon(["one", "two"]);
  let [began, go] = [false, () => {}];
  const { worker, run } = start(it, async (task) => {
    began = true;
    await new Promise((resolve) => (go = resolve));
    return task.input;
  });
  await until(() => began, "the task begins");
  worker.stop();
  go();
  await run;
  assert.deepEqual([...it.results], [["wh_0", { output: "one" }]]);
  assert.equal(it.left.length, 1);
});

test("a token that may not lease ends the worker", async () => {
  const it = await daemon([], { trouble: () => [403, { code: "forbidden_scope", detail: "no" }] });
  const { run } = start(it, () => 1);
  await assert.rejects(run, (error) => error instanceof Refused && error.code === "forbidden_scope");
});
