// A model for llmprobe: a server of chat completions that does what it is told by tool_choice, limits,
// stop texts and JSON modes, and says the same to the same. A token is a word. Prints its address.
import http from "node:http";

/** The least value that fits a schema. */
function sample(schema, name = "") {
  if (schema?.enum) return schema.enum[0];
  if ("const" in (schema ?? {})) return schema.const;
  const kinds = {
    object: () =>
      Object.fromEntries((schema.required ?? []).map((key) => [key, sample(schema.properties?.[key], key)])),
    array: () => Array.from({ length: schema.minItems ?? 1 }, () => sample(schema.items)),
    integer: () => schema.minimum ?? 4,
    number: () => schema.minimum ?? 4.5,
    boolean: () => true,
    null: () => null,
  };
  return (kinds[schema?.type] ?? (() => (name === "city" ? "Paris" : "moon")))();
}

const textOf = (content) =>
  typeof content === "string" ? content : (content ?? []).map((part) => part.text ?? "").join(" ");

/** The calls of an answer, if it has any. */
function callsOf({ tools = [], tool_choice: choice = "auto", parallel_tool_calls: many = true, messages }, asked) {
  const last = messages.at(-1);
  const wanted = choice === "required" || choice?.type === "function" || (choice === "auto" && last.role === "user");
  if (choice === "none" || tools.length === 0 || !wanted) return [];
  const named = tools.filter((tool) => choice?.type !== "function" || tool.function.name === choice.function.name);
  // "Call both" means each tool once, where that is allowed.
  const called = many && /both/i.test(asked) ? named : named.slice(0, 1);
  return called.map((tool) => tool.function).map((tool) => {
    const args = sample(tool.parameters);
    const city = asked.match(/Paris|Tokyo|London|Berlin|Rome/);
    if ("city" in args && city) args.city = city[0];
    // A text in quotes, or after a colon, is what a file is to contain.
    if ("content" in args) args.content = asked.match(/Delimiters used.*?<\|im_end\|>\./s)?.[0] ?? "moon";
    return { name: tool.name, arguments: JSON.stringify(args) };
  });
}

function sayOf({ response_format: format, messages }, asked) {
  if (format?.type === "json_schema") return JSON.stringify(sample(format.json_schema.schema));
  if (format?.type === "json_object") return JSON.stringify({ name: "Ada", age: 36 });
  const system = messages.filter((message) => ["system", "developer"].includes(message.role));
  const word = system.map((it) => textOf(it.content)).join(" ").match(/reply with exactly the word "(.+?)"/);
  if (word) return word[1];
  const last = messages.at(-1);
  if (last.role === "assistant") return "is, as everybody knows, where the river runs.";
  const name = /what is my name/i.test(asked) && messages.map((it) => textOf(it.content).match(/My name is (\w+)/)).find(Boolean);
  if (name) return name[1];
  const product = asked.match(/(\d+) *(?:times|[x*×]) *(\d+)/);
  if (product) return String(product[1] * product[2]);
  if (/at length/i.test(asked)) return Array.from({ length: 500 }, (_, n) => `word${n}`).join(" ");
  const exactly = asked.match(/(?:exactly|verbatim|repeat)[^:]*: *"?(.+?)"?\s*$/is);
  if (exactly) return exactly[1];
  if (/count|numbers|list/i.test(asked)) return Array.from({ length: 60 }, (_, n) => String(n + 1)).join(" ");
  if (/capital of France/i.test(asked)) return "Paris";
  const tool = messages.findLast((message) => message.role === "tool");
  if (tool) return `The tool said: ${textOf(tool.content)}`;
  return `You said: ${asked}`;
}

/** An answer: its thoughts, its words and calls, and why it ended. */
function answer(body) {
  const asked = textOf(body.messages.findLast((message) => message.role === "user")?.content);
  const limit = body.max_completion_tokens ?? body.max_tokens ?? 1_000;
  const calls = callsOf(body, asked);
  const thinks = body.reasoning_effort && body.reasoning_effort !== "none";
  let thoughts = thinks ? ["Let", " me", " think."] : [];
  let words = calls.length > 0 ? [] : (sayOf(body, asked).match(/\s*\S+/g) ?? []);
  let reason = calls.length > 0 ? "tool_calls" : "stop";
  for (const stop of [body.stop ?? []].flat()) {
    const at = words.join("").indexOf(stop);
    if (at >= 0) words = words.join("").slice(0, at).match(/\s*\S+|\s+$/g) ?? [];
  }
  if (thoughts.length + words.length > limit) {
    thoughts = thoughts.slice(0, limit);
    words = words.slice(0, limit - thoughts.length);
    reason = "length";
  }
  const prompt = body.messages.reduce((sum, it) => sum + (textOf(it.content).match(/\S+/g) ?? []).length + 4, 0);
  const out = thoughts.length + words.length + 8 * calls.length;
  const usage = {
    prompt_tokens: prompt, completion_tokens: out, total_tokens: prompt + out,
    prompt_tokens_details: { cached_tokens: 0 }, completion_tokens_details: { reasoning_tokens: thoughts.length },
  };
  return { thoughts, words, calls, reason, usage };
}

let count = 0;
const server = http.createServer(async (request, response) => {
  let text = "";
  for await (const piece of request) text += piece;
  response.setHeader("content-type", "application/json");
  if (!request.url.endsWith("/chat/completions")) {
    return response.end(JSON.stringify({ object: "list", data: [{ id: "probe", object: "model" }] }));
  }
  const body = JSON.parse(text);
  const { thoughts, words, calls, reason, usage } = answer(body);
  const head = { id: `chatcmpl-${++count}`, created: 0, model: body.model };
  const numbered = calls.map((call, index) => ({ index, id: `call_${count}_${index}`, type: "function", function: call }));
  if (!body.stream) {
    const message = {
      role: "assistant", content: words.join("") || null, reasoning_content: thoughts.join("") || undefined,
      tool_calls: numbered.length > 0 ? numbered : undefined,
    };
    const choices = [{ index: 0, message, finish_reason: reason }];
    return response.end(JSON.stringify({ ...head, object: "chat.completion", choices, usage }));
  }
  response.setHeader("content-type", "text/event-stream");
  const send = (rest) => response.write(`data: ${JSON.stringify({ ...head, object: "chat.completion.chunk", ...rest })}\n\n`);
  const delta = (delta, finish_reason = null) => send({ choices: [{ index: 0, delta, finish_reason }] });
  delta({ role: "assistant" });
  for (const thought of thoughts) delta({ reasoning_content: thought });
  for (const word of words) delta({ content: word });
  for (const call of numbered) {
    const { name, arguments: args } = call.function;
    delta({ tool_calls: [{ ...call, function: { name, arguments: "" } }] });
    for (const piece of args.match(/.{1,9}/gs)) delta({ tool_calls: [{ index: call.index, function: { arguments: piece } }] });
  }
  delta({}, reason);
  send({ choices: [], usage });
  response.end("data: [DONE]\n\n");
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/v1`));
