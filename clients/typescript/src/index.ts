/** Workers for the queues of a moonswarm daemon. */

/** The most tasks of one lease, and results or heartbeats of one request. */
const MOST_LEASED = 100;
const MOST_ITEMS = 200;
/** The most bytes of the results of one request; a larger one goes by itself. */
const MOST_BYTES = 4 << 20;
/** The most bytes of one result that the daemon takes. */
const MOST_RESULT = 8 << 20;
/** Statuses that say: the same request again, later. 502 and 504 are of a proxy whose daemon is away. */
const LATER = [429, 502, 503, 504];
/** How long a request for tasks waits at the daemon, in seconds. */
const POLL = 20;
/** The bounds of the time between two heartbeats, in milliseconds. */
const BEAT = [200, 20_000] as const;
/** The most time between two heartbeats after trouble, in milliseconds; it doubles up to that. */
const TROUBLE = 5_000;
/** The bounds of the time that a request of heartbeats may take, in milliseconds. */
const BEAT_TAKES = [1_000, 5_000] as const;

/** The task does not apply: its step is completed without a value. */
export class Skip extends Error {}

/** The task failed. */
export class Failed extends Error {
  readonly retryable: boolean;
  readonly data: unknown;

  constructor(message: string, options: { retryable?: boolean; data?: unknown } = {}) {
    super(message);
    this.retryable = options.retryable ?? false;
    this.data = options.data ?? null;
  }
}

/** What a task used: tokens, and the cost in US dollars as a decimal text. */
export interface Usage {
  input?: number;
  output?: number;
  cached?: number;
  reasoning?: number;
  cost?: string;
}

/** An output, with what it used and the effects that are applied with it. */
export class Result {
  constructor(
    readonly output: unknown,
    readonly more: { usage?: Usage; effects?: readonly object[] } = {},
  ) {}
}

/** The daemon refused a request: its status, and the stable code and the detail of the reason. */
export class Refused extends Error {
  readonly code: string;

  constructor(
    readonly status: number,
    problem: { code?: string; detail?: string },
  ) {
    const code = problem.code ?? `http_${status}`;
    super(`${code}: ${problem.detail ?? ""}`);
    this.code = code;
  }
}

/** The daemon cannot be reached or is too busy: the same request may succeed later. */
class Away extends Error {
  constructor(
    reason: string,
    readonly retryAfter = 0,
  ) {
    super(reason);
  }
}

/** What the worker is told. */
export interface Options {
  /** The URL of the daemon. */
  url: string;
  /** A token that may lease from the queue. */
  token: string;
  /** The queue. */
  queue: string;
  /** Does a task and returns its output. */
  work: (task: Task) => unknown;
  /** How many tasks at a time; 1 by default. */
  maxInFlight?: number;
  /** The name of the worker in lists. */
  name?: string;
  /** The labels of the worker. */
  labels?: Record<string, string>;
  /** False to leave SIGTERM and SIGINT alone. */
  signals?: boolean;
  /** Gets a line about whatever goes wrong; `console.warn` by default. */
  log?: (line: string) => void;
  /** The bounds of the pause while the daemon is away, in milliseconds. */
  pause?: readonly [number, number];
}

interface Prompt {
  run: string;
  agent: string;
  attempt: number;
  session?: string;
  prompt: string;
  system: string | null;
  input: unknown;
  context: { idempotency_key: string; [name: string]: unknown };
  output_schema: unknown;
}

interface Lease {
  task: string;
  handle: string;
  deadline: string;
  prompt?: Prompt;
}

interface Answer {
  status: number;
  deadline?: string | null;
  cancel?: boolean;
  problem?: { code?: string; detail?: string };
  /** The pause that the daemon asked for, in seconds. */
  retryAfter?: number;
}

/** The answer to results; `leased` if the request asked for tasks too. */
interface Answers {
  items: Answer[];
  leased?: Lease[];
}

/** A result, as JSON. */
type Report = string;
type Ask = <T>(bearer: string, method: string, path: string, body?: BodyInit, signal?: AbortSignal) => Promise<T>;
type Patiently = <T>(what: string, ask: () => Promise<T>, ended: AbortSignal) => Promise<T>;

/** A task in work. */
export class Task {
  readonly run: string;
  readonly agent: string;
  readonly attempt: number;
  readonly session: string | undefined;
  readonly prompt: string;
  readonly system: string | null;
  readonly input: unknown;
  readonly context: Prompt["context"];
  readonly outputSchema: unknown;
  readonly #ask: Ask;
  readonly #patiently: Patiently;

  /** Tasks are made by a `Worker`. */
  constructor(
    readonly id: string,
    readonly handle: string,
    prompt: Prompt,
    /** Aborted once the result is not wanted any more. */
    readonly signal: AbortSignal,
    means: { ask: Ask; patiently: Patiently },
  ) {
    this.run = prompt.run;
    this.agent = prompt.agent;
    this.attempt = prompt.attempt;
    this.session = prompt.session;
    this.prompt = prompt.prompt;
    this.system = prompt.system;
    this.input = prompt.input;
    this.context = prompt.context;
    this.outputSchema = prompt.output_schema;
    this.#ask = means.ask;
    this.#patiently = means.patiently;
  }

  /** The same for every attempt of the step. */
  get idempotencyKey(): string {
    return this.context.idempotency_key;
  }

  /** Tells watchers how far the work is. It is not stored; a daemon that is away misses it. */
  async progress(said: { text?: string; percent?: number; data?: unknown }): Promise<void> {
    try {
      await this.#ask(this.handle, "POST", "/v1/worker/progress", JSON.stringify(said));
    } catch (error) {
      if (!(error instanceof Away)) throw error;
    }
  }

  /** Sends a file, which is published with the result. */
  async artifact(name: string, data: string | Uint8Array): Promise<{ id: string; hash: string; size: number }> {
    const path = `/v1/worker/artifact?name=${encodeURIComponent(name)}`;
    const body = new Blob([data as BlobPart], { type: "application/octet-stream" });
    return this.#patiently(this.id, () => this.#ask(this.handle, "POST", path, body, this.signal), this.signal);
  }
}

interface Kept {
  task: string;
  stop: AbortController;
  /** When its lease is renewed and when it ends, in milliseconds of the monotonic clock. */
  beatAt: number;
  endsAt: number;
  /** A third of its time, as of the last renewal. */
  third: number;
  /** The next pause after trouble. */
  pause: number;
}

/** Takes the tasks of a queue and calls `work` for each. */
export class Worker {
  readonly #options: Options;
  readonly #most: number;
  readonly #open = new Map<string, Kept>();
  readonly #results: { handle: string; report: Report }[] = [];
  /** Aborted when no more tasks are taken, and when everything is given up. */
  readonly #draining = new AbortController();
  readonly #ended = new AbortController();
  /** False once the daemon does not know `lease` beside results. */
  #combined = true;
  /** The time at the daemon less that of the monotonic clock here, in milliseconds, as of the last answer. */
  #ahead = Date.now() - performance.now();
  /** True from the first heartbeat that failed until all work again. */
  #troubled = false;
  readonly #bells = new Set<() => void>();

  constructor(options: Options) {
    this.#options = options;
    this.#most = options.maxInFlight ?? 1;
    if (!Number.isInteger(this.#most) || this.#most < 1) throw new RangeError("maxInFlight is a whole number from 1");
    if (!/^https?:$/.test(new URL(options.url).protocol)) throw new TypeError(`${options.url} is not the URL of a daemon`);
  }

  /**
   * Works until it is told to stop; what it has is then finished first.
   *
   * Throws `Refused` if the daemon does not let it lease, or does so no more; what it has is finished before.
   */
  async run(): Promise<void> {
    const heard = () => this.stop({ now: this.#draining.signal.aborted });
    const signals = this.#options.signals === false ? [] : (["SIGTERM", "SIGINT"] as const);
    for (const signal of signals) process.on(signal, heard);
    const helpers = [this.#send(), this.#beat()];
    // Without its helpers, a worker would keep what it has and report nothing.
    for (const helper of helpers) helper.catch(() => this.stop({ now: true }));
    try {
      let refused: Refused | undefined;
      try {
        await this.#take();
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        // The token may have ended: for the tasks in work, their handles are enough.
        refused = error;
        this.stop();
        this.#log(`${this.#options.queue}: ${error.message}; finishing what is in work`);
      }
      while (this.#open.size > 0 && !this.#ended.signal.aborted) await this.#change();
      if (refused !== undefined) throw refused;
    } finally {
      this.stop({ now: true });
      try {
        await Promise.all(helpers);
      } finally {
        for (const signal of signals) process.off(signal, heard);
      }
    }
  }

  /** Asks for no more tasks; `run` returns once those in work are finished, or at once with `now`. */
  stop({ now = false } = {}): void {
    // The daemon gives a task that nobody took to another worker.
    this.#draining.abort();
    if (now) {
      this.#ended.abort();
      for (const kept of this.#open.values()) kept.stop.abort();
    }
    this.#ring();
  }

  // Tasks that come and end wake whoever waits for a change.

  #ring(): void {
    for (const wake of [...this.#bells]) wake();
  }

  #change(most = 2 ** 31 - 1): Promise<void> {
    return new Promise((resolve) => {
      const wake = () => {
        clearTimeout(timer);
        this.#bells.delete(wake);
        resolve();
      };
      const timer = setTimeout(wake, most);
      this.#bells.add(wake);
    });
  }

  // Requests.

  readonly #ask: Ask = async <T>(bearer: string, method: string, path: string, body?: BodyInit, signal?: AbortSignal) => {
    const headers: Record<string, string> = { authorization: `Bearer ${bearer}` };
    if (typeof body === "string") headers["content-type"] = "application/json";
    const within = AbortSignal.timeout((POLL + 40) * 1_000);
    const signals = [within, this.#ended.signal, ...(signal ? [signal] : [])];
    const request: RequestInit = { method, headers, signal: AbortSignal.any(signals) };
    if (body !== undefined) request.body = body;
    let answer: Response;
    let ahead: number;
    let text: string;
    try {
      answer = await fetch(this.#options.url.replace(/\/+$/, "") + path, request);
      // The body may take long.
      ahead = wall(answer.headers.get("date")) - performance.now();
      text = await answer.text();
    } catch (error) {
      const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error;
      throw new Away(String(cause));
    }
    if (LATER.includes(answer.status)) {
      throw new Away(`the daemon answered ${answer.status}`, Number(answer.headers.get("retry-after")) || 0);
    }
    if (!answer.ok) throw new Refused(answer.status, object(text));
    let found: unknown;
    try {
      found = text === "" ? undefined : JSON.parse(text);
    } catch {
      // The page of a proxy.
      throw new Away("the answer is no JSON");
    }
    this.#ahead = ahead;
    return found as T;
  };

  readonly #patiently: Patiently = async (what, ask, ended) => {
    for (let tries = 0; ; tries += 1) {
      try {
        return await ask();
      } catch (error) {
        if (!(error instanceof Away) || ended.aborted) throw error;
        this.#log(`${what}: ${error.message}`);
        await this.#pause(tries, error.retryAfter, ended);
      }
    }
  };

  /** A pause that grows. Workers that lost the same daemon do not all come back at the same moment. */
  #pause(tries: number, retryAfter: number, ended: AbortSignal): Promise<void> {
    const [least, most] = this.#options.pause ?? [500, 30_000];
    const pause = Math.min(Math.max(retryAfter * 1_000, least * 2 ** Math.min(tries, 20)), most);
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer);
        ended.removeEventListener("abort", done);
        resolve();
      };
      const timer = setTimeout(done, pause * (0.8 + 0.4 * Math.random()));
      if (ended.aborted) done();
      else ended.addEventListener("abort", done, { once: true });
    });
  }

  #log(line: string): void {
    (this.#options.log ?? console.warn)(line);
  }

  // Leases.

  async #take(): Promise<void> {
    const draining = this.#draining.signal;
    const { token, queue } = this.#options;
    for (let tries = 0; !draining.aborted; ) {
      const free = this.#most - this.#open.size;
      if (free <= 0) {
        await this.#change();
        continue;
      }
      const body = JSON.stringify({ ...this.#wanted(free), wait: `${POLL}s` });
      try {
        const leased = await this.#ask<Lease[] | undefined>(token, "POST", "/v1/worker/lease", body, draining);
        if (!Array.isArray(leased ?? [])) throw new Away("the answer is no list of tasks");
        tries = 0;
        for (const lease of leased ?? []) this.#begin(lease);
      } catch (error) {
        if (!(error instanceof Away)) throw error;
        if (draining.aborted) return;
        this.#log(`${queue}: ${error.message}`);
        await this.#pause(tries, error.retryAfter, draining);
        tries += 1;
      }
    }
  }

  /** The body of a request for up to `most` tasks. */
  #wanted(most: number): object {
    const { queue, name, labels } = this.#options;
    return { queue, max: Math.min(most, MOST_LEASED), prompts: true, worker: name, labels };
  }

  #begin(lease: Lease): void {
    // The work of the one before may have given up. Once its lease has ended, it goes to another worker.
    if (this.#ended.signal.aborted) return;
    const stop = new AbortController();
    const kept = { task: lease.task, stop, beatAt: 0, endsAt: 0, third: 0, pause: 0 };
    this.#renewed(kept, lease.deadline);
    this.#open.set(lease.handle, kept);
    this.#ring();
    this.#attempt(lease, stop.signal).catch((error: unknown) => {
      this.#log(`${lease.task}: ${String(error)}`);
      this.#forget([lease.handle]);
    });
  }

  #forget(handles: string[]): void {
    for (const handle of handles) this.#open.delete(handle);
    this.#ring();
  }

  async #attempt(lease: Lease, signal: AbortSignal): Promise<void> {
    const fetchPrompt = () => this.#ask<Prompt>(lease.handle, "GET", "/v1/worker/prompt", undefined, signal);
    const prompt = lease.prompt ?? (await this.#patiently(lease.task, fetchPrompt, signal));
    const means = { ask: this.#ask, patiently: this.#patiently };
    const report = await this.#call(new Task(lease.task, lease.handle, prompt, signal, means));
    if (signal.aborted) return this.#forget([lease.handle]);
    this.#results.push({ handle: lease.handle, report });
    this.#ring();
  }

  async #call(task: Task): Promise<Report> {
    try {
      const returned = await this.#options.work(task);
      const result = returned instanceof Result ? returned : new Result(returned);
      // What is no JSON is found here, where it is the task's own failure.
      const output = JSON.parse(JSON.stringify(result.output ?? null)) as unknown;
      const report = JSON.stringify({ output, ...result.more });
      const size = Buffer.byteLength(report);
      if (size <= MOST_RESULT) return report;
      throw new Failed(`the result has ${size} bytes; at most ${MOST_RESULT} are possible`);
    } catch (error) {
      if (error instanceof Skip) return JSON.stringify({ skip: error.message });
      if (error instanceof Failed) return failure(error.message, error.retryable, error.data);
      const message = told(error);
      if (!task.signal.aborted) this.#log(`${task.id}: ${message}`);
      return failure(message);
    }
  }

  // Results.

  async #send(): Promise<void> {
    const ended = this.#ended.signal;
    while (!ended.aborted) {
      const first = this.#results[0];
      if (first === undefined) {
        await this.#change();
        continue;
      }
      const items: { handle: string; report: Report }[] = [];
      const texts: string[] = [];
      let size = 0;
      for (const item of this.#results.slice(0, MOST_ITEMS)) {
        const text = `{"handle":${JSON.stringify(item.handle)},"result":${item.report}}`;
        size += Buffer.byteLength(text);
        if (items.length > 0 && size > MOST_BYTES) break;
        items.push(item);
        texts.push(text);
      }
      this.#results.splice(0, items.length);
      try {
        const answers = await this.#sendAll(texts);
        // Before the slots of these results are free, so that the poll does not ask for them too.
        for (const lease of answers.leased ?? []) this.#begin(lease);
        for (const [place, item] of items.entries()) await this.#settle(item, answers.items[place] ?? { status: 503 });
      } catch (error) {
        this.#log(`results: given up: ${String(error)}`);
      }
      this.#forget(items.map((item) => item.handle));
    }
  }

  async #sendAll(texts: string[]): Promise<Answers> {
    try {
      return await this.#patiently("results", () => this.#handIn(texts), this.#ended.signal);
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      // The token may have ended: the handles are enough.
      this.#log(`results: ${error.message}; sending them one by one`);
      return { items: texts.map(() => ({ status: 503 })) };
    }
  }

  /** Sends results. The same request asks for tasks in the slots that they free, unless the worker drains. */
  async #handIn(texts: string[]): Promise<Answers> {
    const asks = this.#combined && !this.#draining.signal.aborted;
    const lease = asks ? `,"lease":${JSON.stringify(this.#wanted(texts.length))}` : "";
    try {
      const body = `{"results":[${texts.join(",")}]${lease}}`;
      return withItems(await this.#ask(this.#options.token, "POST", "/v1/worker/results", body));
    } catch (error) {
      if (!asks || !(error instanceof Refused) || error.code !== "unknown_field") throw error;
      // An older daemon: nothing of the request was accepted.
      this.#combined = false;
      return this.#handIn(texts);
    }
  }

  async #settle({ handle, report }: { handle: string; report: Report }, answer: Answer): Promise<void> {
    const task = this.#open.get(handle)?.task ?? handle;
    try {
      if (LATER.includes(answer.status)) await this.#sendOne(task, handle, report);
      else if (answer.status >= 300) throw new Refused(answer.status, answer.problem ?? {});
    } catch (error) {
      this.#log(`${task}: the result was refused: ${String(error)}`);
      if (!(error instanceof Refused) || [401, 403, 404, 409].includes(error.status)) return;
      // Left alone, the attempt would count as interrupted and be done again and again.
      const failed = failure(`the daemon refused the result: ${error.message}`);
      await this.#sendOne(task, handle, failed).catch((again: unknown) => this.#log(`${task}: ${String(again)}`));
    }
  }

  async #sendOne(task: string, handle: string, report: Report): Promise<void> {
    await this.#patiently(task, () => this.#ask(handle, "POST", "/v1/worker/result", report), this.#ended.signal);
  }

  // Leases in work.

  async #beat(): Promise<void> {
    while (!this.#ended.signal.aborted) {
      // One that is not wanted any more is not renewed, however long its work goes on.
      const open = [...this.#open].filter(([, kept]) => !kept.stop.signal.aborted);
      const left = Math.min(...open.map(([, kept]) => kept.beatAt)) - performance.now();
      if (left > 0) {
        // A lease that comes meanwhile may end sooner.
        await this.#change(Math.min(left, BEAT[1]));
        continue;
      }
      const handles = open.map(([handle]) => handle);
      let trouble: string | undefined;
      for (let start = 0; start < handles.length; start += MOST_ITEMS) {
        const found = await this.#beatFor(handles.slice(start, start + MOST_ITEMS));
        trouble ??= found;
      }
      if (this.#ended.signal.aborted) return;
      // There is one line when they begin to fail, and one when they work again.
      if (trouble !== undefined && !this.#troubled) this.#log(`heartbeats: ${trouble}`);
      if (trouble === undefined && this.#troubled) this.#log("heartbeats: they work again");
      this.#troubled = trouble !== undefined;
    }
  }

  /** Renews leases, and returns what went wrong. */
  async #beatFor(handles: string[]): Promise<string | undefined> {
    let answers: Answer[];
    let trouble: string | undefined;
    // While a request hangs, no lease is renewed.
    const third = Math.min(...handles.map((handle) => this.#open.get(handle)?.third ?? Infinity));
    const ms = Math.round(Math.min(Math.max(third, BEAT_TAKES[0]), BEAT_TAKES[1]));
    try {
      const body = JSON.stringify({ handles });
      const within = AbortSignal.timeout(ms);
      const sent = await this.#ask<unknown>(this.#options.token, "POST", "/v1/worker/heartbeats", body, within);
      answers = withItems(sent).items;
    } catch (error) {
      trouble = String(error);
      if (error instanceof Refused) {
        trouble += "; sending them one by one";
        answers = await Promise.all(handles.map((handle) => this.#beatOne(handle, ms)));
      } else {
        // A daemon that restarts: the leases outlive that.
        answers = handles.map(() => later(error));
      }
    }
    for (const [place, handle] of handles.entries()) {
      const [answer, kept] = [answers[place] ?? { status: 503 }, this.#open.get(handle)];
      if (kept === undefined) continue;
      if (answer.cancel === true || [401, 403, 404, 409].includes(answer.status)) kept.stop.abort();
      else if (answer.status === 200) this.#renewed(kept, answer.deadline);
      else {
        trouble ??= `the daemon answered ${answer.status}`;
        putOff(kept, (answer.retryAfter ?? 0) * 1_000);
      }
    }
    return trouble;
  }

  async #beatOne(handle: string, ms: number): Promise<Answer> {
    try {
      const within = AbortSignal.timeout(ms);
      const kept = await this.#ask<object | undefined>(handle, "POST", "/v1/worker/heartbeat", undefined, within);
      return kept === undefined ? { status: 503 } : { status: 200, ...kept };
    } catch (error) {
      if (error instanceof Refused) return { status: error.status };
      return later(error);
    }
  }

  /** A lease ends at `deadline`, RFC 3339, of the daemon's clock. It is renewed after a third of its time. */
  #renewed(kept: Kept, deadline: string | null | undefined): void {
    const now = performance.now();
    const left = typeof deadline === "string" ? Date.parse(deadline) - (now + this.#ahead) : Infinity;
    kept.third = Math.max(left / 3, BEAT[0]);
    kept.beatAt = now + Math.min(kept.third, BEAT[1]);
    kept.endsAt = now + left;
    kept.pause = BEAT[0];
  }
}

/** Returns the answer, if it is one to a list. */
function withItems(answer: unknown): Answers {
  const answers = answer as Partial<Answers> | undefined;
  if (!Array.isArray(answers?.items)) throw new Away("the answer has no items");
  return answers as Answers;
}

/** Returns the answer in the place of one that did not come. */
function later(error: unknown): Answer {
  return { status: 503, retryAfter: error instanceof Away ? error.retryAfter : 0 };
}

/**
 * Puts off a renewal that failed, by a pause that grows, but not past a third of what is left of the lease.
 *
 * A daemon that was away gives each lease its whole time anew, so one that would have ended goes on.
 */
function putOff(kept: Kept, asked: number): void {
  const now = performance.now();
  const room = kept.endsAt > now ? (kept.endsAt - now) / 3 : kept.third;
  kept.beatAt = now + Math.max(Math.min(Math.max(kept.pause, asked), room), BEAT[0]);
  kept.pause = Math.min(kept.pause * 2, TROUBLE);
}

/** The latest time that a `Date` means, which has whole seconds; without one, the time here. */
function wall(date: string | null): number {
  const at = Date.parse(date ?? "");
  return Number.isNaN(at) ? Date.now() : at + 1_000;
}

function failure(message: string, retryable = false, data: unknown = null): Report {
  try {
    return JSON.stringify({ ok: false, error: { message, retryable, data } });
  } catch {
    // The data is no JSON: its text is told.
    return failure(message, retryable, told(data));
  }
}

/** The text of what was thrown; some things have none. */
function told(error: unknown): string {
  try {
    return String(error);
  } catch {
    return typeof error;
  }
}

function object(text: string): { code?: string; detail?: string } {
  try {
    const found: unknown = JSON.parse(text);
    return typeof found === "object" && found !== null ? found : {};
  } catch {
    return {};
  }
}
