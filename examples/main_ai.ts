// A moonswarm MainAI: takes a run's tasks over a WebSocket and works on them in parallel.
//
//     export MOONSWARM_URL=http://127.0.0.1:7700 MOONSWARM_TOKEN=$(moonswarm token mint --role operator)
//     node main_ai.ts            (Node 22.18 or newer; nothing to install)
//
// It opens a session (or goes on with the one in MOONSWARM_SESSION and MOONSWARM_SESSION_TOKEN),
// starts a sub-agent for every spawn, and comes back after every cut with the last number it saw.
// Put your own agent into `subAgent`; here it answers with what it was asked.
import { setTimeout as pause } from "node:timers/promises";
import process from "node:process";

const url = process.env.MOONSWARM_URL ?? "http://127.0.0.1:7700";
const final = new Set([1000, 4000, 4001, 4002]); // closed, replaced, revoked, expired: do not come back

type Spawn = { task: string; attempt: number; agent: string; handle: string };

async function http(method: string, path: string, token: string, body?: unknown): Promise<any> {
  const answer = await fetch(url + path, {
    method,
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: AbortSignal.timeout(60_000),
  });
  if (!answer.ok) throw new Error(`${method} ${path}: ${answer.status} ${await answer.text()}`);
  return answer.json();
}

// The thin road: fetch the prompt with the handle, work, report over HTTP.
async function subAgent(spawn: Spawn, canceled: AbortSignal): Promise<void> {
  const task = await http("GET", "/v1/worker/prompt", spawn.handle);
  const output = { agent: spawn.agent, answer: task.prompt };
  if (!canceled.aborted) await http("POST", "/v1/worker/result", spawn.handle, { output });
}

class MainAi {
  session: string;
  token: string;
  seen: number | undefined;
  agents = new Map<string, AbortController>();

  constructor(session: string, token: string) {
    this.session = session;
    this.token = token;
  }

  start(spawn: Spawn): void {
    const key = `${spawn.task}/${spawn.attempt}`;
    if (this.agents.has(key)) return; // a frame that comes again is the same task
    const canceled = new AbortController();
    this.agents.set(key, canceled);
    subAgent(spawn, canceled.signal)
      .catch((error) => console.log(`${spawn.task}: ${error}`)) // away, or the attempt is over
      .finally(() => this.agents.delete(key));
  }

  hear(socket: WebSocket, text: string): void {
    const frame = JSON.parse(text);
    const { method, params } = frame;
    if (method === "task/spawn") this.start(params);
    if (method === "task/cancel") this.agents.get(`${params.task}/${params.attempt}`)?.abort();
    if (frame.id === "tasks/list") {
      for (const task of frame.result.items) this.start({ ...task, task: task.id });
      const cursor = frame.result.next_cursor;
      if (cursor) call(socket, "tasks/list", { cursor });
    }
    if (["task/spawn", "task/cancel", "task/answer"].includes(method)) {
      this.seen = frame.seq;
      call(socket, "ack", { seq: frame.seq });
    }
  }

  // One connection, until it is closed; its close code.
  connect(): Promise<number> {
    const resume = this.seen === undefined ? "" : `?resume=${this.seen}`;
    const where = `${url.replace("http", "ws")}/v1/sessions/${this.session}/ws${resume}`;
    // A WebSocket of a browser's kind sends no headers: the token goes as a protocol.
    const socket = new WebSocket(where, ["moonswarm.v1", `bearer.${this.token}`]);
    socket.addEventListener("open", () => {
      console.log(`connected as ${this.session}`);
      call(socket, "tasks/list", {}); // what was given before, and perhaps forgotten
    });
    socket.addEventListener("message", (event) => this.hear(socket, String(event.data)));
    return new Promise((closed) => {
      socket.addEventListener("close", (event) => closed(event.code));
    });
  }

  async serve(): Promise<void> {
    for (let wait = 100; ; wait = Math.min(2 * wait, 5_000)) {
      const before = Date.now();
      const code = await this.connect();
      if (final.has(code)) return console.log(`over: ${code}`);
      if (Date.now() - before > 5_000) wait = 100;
      if (await this.isRefused()) return console.log("refused: open another session");
      await pause(wait);
    }
  }

  // Why a socket did not open is not told to such a client: HTTP is asked.
  async isRefused(): Promise<boolean> {
    try {
      const path = `/v1/sessions/${this.session}`;
      const answer = await fetch(url + path, { headers: { authorization: `Bearer ${this.token}` } });
      await answer.body?.cancel();
      return [401, 403, 404].includes(answer.status);
    } catch {
      return false; // the daemon is away
    }
  }
}

function call(socket: WebSocket, method: string, params: object): void {
  socket.send(JSON.stringify({ jsonrpc: "2.0", id: method, method, params }));
}

let session = process.env.MOONSWARM_SESSION;
let token = process.env.MOONSWARM_SESSION_TOKEN;
if (!session || !token) {
  const path = "/v1/operators/main-ai/sessions";
  const opened = await http("POST", path, process.env.MOONSWARM_TOKEN ?? "", {});
  session = opened.session as string;
  token = opened.token as string;
}
await new MainAi(session, token).serve();
