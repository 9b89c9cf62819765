// Anthropic's official TypeScript client against a daemon: what it sends is understood, and its types
// hold. Run by tests/responses/clients.rs; BASE_URL and API_KEY say where.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({
  baseURL: process.env.BASE_URL!.replace(/\/v1$/, ""),
  apiKey: process.env.API_KEY!,
  maxRetries: 0,
  timeout: 60_000,
});
const AGENT = "desk/helper";
const FLOW = "mirror";
const user = (content: string): Anthropic.MessageParam => ({ role: "user", content });
const WEATHER: Anthropic.Tool = {
  name: "weather",
  input_schema: { type: "object", properties: { town: { type: "string" } }, required: ["town"] },
};

const checks: Record<string, () => Promise<void>> = {
  async creates() {
    const message = await client.messages.create({ model: AGENT, max_tokens: 99, messages: [user("hello")] });
    const last = message.content.at(-1);
    assert.equal(last?.type === "text" && last.text, "Hello to you.");
    assert.equal(message.usage.output_tokens, 4);
    const cut = await client.messages.create({
      model: FLOW, max_tokens: 99, stop_sequences: ["hi"], messages: [user("hi")],
    });
    assert.equal(cut.stop_sequence, "hi");
  },
  async streams() {
    const stream = client.messages.stream({ model: AGENT, max_tokens: 99, messages: [user("hello")] });
    let text = "";
    stream.on("text", (piece) => (text += piece));
    const final = await stream.finalMessage();
    assert.equal(text, "Hello to you.");
    assert.equal(final.stop_reason, "end_turn");
  },
  async callsTools() {
    const messages = [user("weather?")];
    const first = await client.messages
      .stream({ model: AGENT, max_tokens: 99, tools: [WEATHER], messages })
      .finalMessage();
    const calls = first.content.filter((block) => block.type === "tool_use");
    assert.deepEqual(calls.map((call) => call.input), [{ town: "Lagos" }, { town: "Faro" }]);
    const results: Anthropic.ToolResultBlockParam[] = calls.map((call) => ({
      type: "tool_result", tool_use_id: call.id, content: "sun",
    }));
    messages.push({ role: "assistant", content: first.content }, { role: "user", content: results });
    const second = await client.messages.create({ model: AGENT, max_tokens: 99, tools: [WEATHER], messages });
    const said = second.content[0];
    assert.equal(said?.type === "text" && said.text, "Sunny in both.");
  },
  async refuses() {
    const wrong = client.messages.create({ model: "nobody", max_tokens: 9, messages: [user("x")] });
    await assert.rejects(wrong, Anthropic.NotFoundError);
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(name);
}
