// The official TypeScript client against a daemon: what it sends is understood, and its types hold.
// Run by tests/responses/clients.rs; BASE_URL and API_KEY say where.

import assert from "node:assert/strict";
import OpenAI from "openai";
import type { ResponseStreamEvent } from "openai/resources/responses/responses";

const client = new OpenAI({
  baseURL: process.env.BASE_URL,
  apiKey: process.env.API_KEY!,
  maxRetries: 0,
  timeout: 60_000,
});
const AGENT = "desk/helper";
const FLOW = "mirror";
const PIXEL =
  "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";
const WEATHER: OpenAI.Responses.FunctionTool = {
  type: "function",
  name: "weather",
  description: "The weather in a town.",
  parameters: { type: "object", properties: { town: { type: "string" } }, required: ["town"] },
  strict: false,
};

async function collect(stream: AsyncIterable<ResponseStreamEvent>): Promise<ResponseStreamEvent[]> {
  const events: ResponseStreamEvent[] = [];
  for await (const event of stream) events.push(event);
  return events;
}

const checks: Record<string, () => Promise<void>> = {
  async creates() {
    const response = await client.responses.create({ model: AGENT, input: "hello", metadata: { a: "b" } });
    assert.equal(response.output_text, "Hello to you.");
    assert.equal(response.usage?.total_tokens, 14);
    const again = await client.responses.retrieve(response.id);
    assert.deepEqual(again.output, response.output);
    assert.equal((await client.responses.create({ model: FLOW, input: "hi" })).output_text, "You said: hi");
  },

  async streams() {
    const events = await collect(await client.responses.create({ model: AGENT, input: "hello", stream: true }));
    assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, n) => n));
    const deltas = events.filter((event) => event.type === "response.output_text.delta");
    assert.equal(deltas.map((event) => event.delta).join(""), "Hello to you.");
    const last = events.at(-1)!;
    assert.ok(last.type === "response.completed", last.type);
    const rest = await client.responses.retrieve(last.response.id, { stream: true, starting_after: 3 });
    assert.deepEqual(await collect(rest), events.slice(4));
    const final = await client.responses.stream({ model: AGENT, input: "hello" }).finalResponse();
    assert.equal(final.output_text, "Hello to you.");
  },

  async callsTools() {
    const asked = { model: AGENT, tools: [WEATHER] };
    const first = await client.responses.create({ ...asked, input: "weather?", tool_choice: "required" });
    const calls = first.output.filter((item) => item.type === "function_call");
    assert.deepEqual(calls.map((call) => call.arguments), ['{"town":"Lagos"}', '{"town":"Faro"}']);
    const input = calls.map((call) => ({ type: "function_call_output" as const, call_id: call.call_id, output: "sun" }));
    const second = await client.responses.create({ ...asked, input, previous_response_id: first.id });
    assert.equal(second.output_text, "Sunny in both.");
    const items = await client.responses.inputItems.list(second.id, { order: "asc" });
    assert.deepEqual(items.data.map((item) => item.type).slice(0, 2), ["message", "function_call"]);
  },

  async worksInTheBackground() {
    const waits = await client.responses.create({ model: FLOW, input: "wait", background: true });
    assert.ok(waits.status === "queued" || waits.status === "in_progress");
    assert.equal((await client.responses.cancel(waits.id)).status, "cancelled");
    const done = await client.responses.create({ model: AGENT, input: "hello", background: true });
    const events = await collect(await client.responses.retrieve(done.id, { stream: true }));
    assert.equal(events.at(-1)?.type, "response.completed");
    await client.responses.delete(done.id);
    await assert.rejects(client.responses.retrieve(done.id), OpenAI.NotFoundError);
  },

  async seesImagesAndGoesOn() {
    const seen = await client.responses.create({
      model: AGENT,
      input: [{ role: "user", content: [
        { type: "input_text", text: "picture" },
        { type: "input_image", image_url: PIXEL, detail: "low" },
      ] }],
    });
    assert.equal(seen.output_text, "A pixel.");
    const first = await client.responses.create({ model: AGENT, input: "hello" });
    const second = await client.responses.create({ model: AGENT, input: "again", previous_response_id: first.id });
    assert.equal(second.output_text, "Hello again.");
    const compacted = await client.responses.compact({ model: AGENT, previous_response_id: second.id });
    assert.equal(compacted.output.at(-1)?.type, "compaction");
  },

  async isRefused() {
    await assert.rejects(client.responses.create({ model: "nobody", input: "x" }), (error: unknown) => {
      assert.ok(error instanceof OpenAI.NotFoundError);
      assert.equal(error.param, "model");
      return true;
    });
    await assert.rejects(
      client.responses.create({ model: AGENT, input: "x", temperature: 9 }),
      OpenAI.BadRequestError,
    );
  },

  async listsModels() {
    const ids: string[] = [];
    for await (const model of client.models.list()) ids.push(model.id);
    assert.ok(ids.includes(AGENT) && ids.includes(FLOW));
    assert.equal((await client.models.retrieve(AGENT)).id, AGENT);
  },

  async chats() {
    const messages = [{ role: "user" as const, content: "hello" }];
    const whole = await client.chat.completions.create({ model: AGENT, messages });
    assert.equal(whole.choices[0]?.message.content, "Hello to you.");
    let text = "";
    for await (const chunk of await client.chat.completions.create({ model: AGENT, messages, stream: true })) {
      text += chunk.choices[0]?.delta.content ?? "";
    }
    assert.equal(text, "Hello to you.");
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`${name}: ok`);
}
