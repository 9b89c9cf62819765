// The official TypeScript SDKs against a daemon, over both transports: the first generation
// (@modelcontextprotocol/sdk), and the second (@modelcontextprotocol/client) with both kinds of
// revision. Run by tests/mcp/clients.rs, beside their packages: MCP_URL and MCP_TOKEN say where a
// daemon is, MCP_PROGRAM and MCP_DATA what is started for stdio.

import assert from "node:assert/strict";
import * as v1 from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport as Pipes1 } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport as Http1 } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import * as v2 from "@modelcontextprotocol/client";
import { StdioClientTransport as Pipes2 } from "@modelcontextprotocol/client/stdio";

const { MCP_URL, MCP_TOKEN, MCP_PROGRAM, MCP_DATA } = process.env;
const FLOW = 'return require("swarm").blueprint { name = "two", flow = function() return { sum = 1 + 1 } end }';
const INFO = { name: "test", version: "1" };
const CAPABILITIES = { elicitation: { form: {} } };
const HEADERS = { requestInit: { headers: { Authorization: `Bearer ${MCP_TOKEN}` } } };
const PROCESS = {
  command: MCP_PROGRAM, args: ["mcp", "--data", MCP_DATA], env: { MOONSWARM_TOKEN: MCP_TOKEN }, stderr: "ignore",
};

const person = async (request) => {
  assert.equal(request.params.message, "Who are you?");
  return { action: "accept", content: { name: "moon" } };
};
function first() {
  const client = new v1.Client(INFO, { capabilities: CAPABILITIES });
  client.setRequestHandler(ElicitRequestSchema, person);
  client.asks = (params, options) => client.callTool(params, undefined, options);
  return client;
}
function second(mode) {
  const client = new v2.Client(INFO, { capabilities: CAPABILITIES, versionNegotiation: { mode } });
  client.setRequestHandler("elicitation/create", person);
  client.asks = (params, options) => client.callTool(params, options);
  return client;
}

/** What a tool returns, which fits its output schema: the client checks that. */
async function value(client, name, args = {}) {
  const result = await client.asks({ name, arguments: args });
  assert.ok(!result.isError, JSON.stringify(result));
  assert.equal(result.content[0].type, "text");
  return result.structuredContent;
}
const newest = async (client) => (await value(client, "list_runs", { blueprint: "slow" })).items[0].id;

const checks = {
  async lists(client) {
    assert.equal(client.getServerVersion().name, "moonswarm");
    const tools = new Map((await client.listTools()).tools.map((tool) => [tool.name, tool]));
    assert.ok(tools.size > 25);
    for (const name of ["start_run", "next_task", "greet", "slow"]) assert.ok(tools.has(name), name);
    assert.equal(tools.get("list_runs").annotations.readOnlyHint, true);
    assert.equal(tools.get("greet").description, "Greets whom it asks.");
  },
  async calls(client) {
    assert.equal((await value(client, "check_blueprint", { source: FLOW })).ok, true);
    const started = await value(client, "start_run", { source: FLOW });
    const ended = await value(client, "get_run", { run: started.id, wait_seconds: 45 });
    assert.deepEqual([ended.status, ended.output], ["completed", { sum: 2 }]);
    assert.ok(Array.isArray((await value(client, "list_steps", { run: started.id })).items));
    assert.ok((await value(client, "search_docs", { query: "retry" })).sections.length > 0);
    const run = await client.readResource({ uri: `moonswarm://runs/${started.id}` });
    assert.match(run.contents[0].text, /"completed"/);
  },
  async refuses(client) {
    const wrong = await client.asks({ name: "get_run", arguments: { run: "run_aaaaaaaaaaaaaaaaaaaaaaaaaa" } });
    assert.ok(wrong.isError && wrong.content[0].text.includes("Next:"));
    await assert.rejects(client.asks({ name: "no_such_tool", arguments: {} }), (error) => error.code === -32602);
  },
  async reads(client) {
    const { resources } = await client.listResources();
    const page = resources.find((it) => it.uri === "moonswarm://docs/mcp.md");
    const { contents } = await client.readResource({ uri: page.uri });
    assert.equal(contents[0].mimeType, "text/markdown");
    const { resourceTemplates } = await client.listResourceTemplates();
    assert.ok(resourceTemplates.some((it) => it.uriTemplate === "moonswarm://runs/{run}"));
    assert.ok((await client.listPrompts()).prompts.some((it) => it.name === "debug-run"));
    const prompt = await client.getPrompt({ name: "debug-run", arguments: { run: "run_x" } });
    assert.match(prompt.messages[0].content.text, /run_x/);
  },
  async asks(client) {
    assert.equal((await value(client, "greet")).output, "hello, moon");
  },
  /** Progress comes during the call: the run goes on only once the client has seen it. */
  async tells(client) {
    const told = [];
    const onprogress = async ({ message }) => {
      told.push(message);
      const run = await newest(client);
      await value(client, "control_run", { run, action: "signal", signal: "go" });
    };
    const done = await client.asks({ name: "slow", arguments: {} }, { onprogress });
    assert.deepEqual([done.structuredContent.output, told], ["done", ["halfway"]]);
  },
  async cancels(client) {
    const stop = new AbortController();
    const seen = Promise.withResolvers();
    const call = client.asks({ name: "slow", arguments: {} }, { signal: stop.signal, onprogress: seen.resolve });
    call.catch(() => {});
    await seen.promise;
    const run = await newest(client);
    stop.abort("no longer wanted");
    await assert.rejects(call);
    const ended = await value(client, "get_run", { run, wait_seconds: 30 });
    assert.equal(ended.status, "canceled");
  },
};

const clients = {
  "the first SDK over HTTP": () => [first(), new Http1(new URL(MCP_URL), HEADERS)],
  "the first SDK over stdio": () => [first(), new Pipes1(PROCESS)],
  "the second SDK over HTTP": () => [second("auto"), new v2.StreamableHTTPClientTransport(new URL(MCP_URL), HEADERS)],
  "the second SDK over stdio": () => [second("auto"), new Pipes2(PROCESS)],
  "the second SDK over HTTP, an older revision": () =>
    [second("legacy"), new v2.StreamableHTTPClientTransport(new URL(MCP_URL), HEADERS)],
  "the second SDK over stdio, an older revision": () => [second("legacy"), new Pipes2(PROCESS)],
};
for (const [name, make] of Object.entries(clients)) {
  const [client, transport] = make();
  await client.connect(transport);
  for (const [check, run] of Object.entries(checks)) {
    console.log(`${name}: ${check}`);
    await run(client);
  }
  await client.close();
}
process.exit(0);
