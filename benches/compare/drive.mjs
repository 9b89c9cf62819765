// Starts runs over HTTP, so many at a time over kept connections, and waits for the result of each.
//   drive.mjs moonswarm|moonswarm-alone|restate URL TOKEN AT_A_TIME SECONDS
import http from "node:http";

const [system, url, token, atATime, seconds] = process.argv.slice(2);
const callers = Number(atATime);
const agent = new http.Agent({ keepAlive: true, maxSockets: callers });
const SOURCE = `
local swarm = require("swarm")
return swarm.blueprint {
  name = "compare",
  agents = { echo = { operator = "echo" } },
  flow = function(ctx, input)
    local sum = 0
    for step = 1, input.steps do sum = sum + ctx:run("echo", { n = step }).n end
    return sum
  end,
}`;

function send(method, path, body, bearer = token) {
  const text = JSON.stringify(body);
  const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(text) };
  if (bearer !== "-") headers.authorization = `Bearer ${bearer}`;
  return new Promise((resolve, reject) => {
    const request = http.request(url + path, { method, headers, agent }, (answer) => {
      let got = "";
      answer.setEncoding("utf8").on("data", (part) => (got += part));
      answer.on("end", () =>
        answer.statusCode < 300 ? resolve(JSON.parse(got)) : reject(new Error(`${answer.statusCode} ${got}`)),
      );
    });
    request.on("error", reject).end(text);
  });
}

const steps = system === "moonswarm-alone" ? 1 : 10;
const expected = (steps * (steps + 1)) / 2;
let run;
if (system === "restate") {
  run = async () => {
    const sum = await send("POST", "/bench/run", { steps });
    if (sum !== expected) throw new Error(`${sum}`);
  };
} else {
  await send("PUT", "/v1/blueprints/compare", { source: SOURCE });
  // The rate of one token is limited; each caller has its own.
  const tokens = [];
  for (let n = 0; n < callers; n++) {
    tokens.push((await send("POST", "/v1/tokens", { role: "admin", ttl: "1h" })).token);
  }
  run = async (caller) => {
    const body = { blueprint: "compare", input: { steps }, wait: "60s" };
    const view = await send("POST", "/v1/runs", body, tokens[caller]);
    if (view.output !== expected) throw new Error(JSON.stringify(view));
  };
}

const times = [];
async function call(caller, until, keeps) {
  while (performance.now() < until) {
    const since = performance.now();
    await run(caller);
    if (keeps) times.push(performance.now() - since);
  }
}
const all = (until, keeps) => Promise.all([...Array(callers).keys()].map((n) => call(n, until, keeps)));
await all(performance.now() + 2_000, false);
const since = performance.now();
await all(since + 1_000 * Number(seconds), true);
const took = (performance.now() - since) / 1_000;
times.sort((a, b) => a - b);
const at = (part) => times[Math.floor(part * (times.length - 1))].toFixed(1);
console.log(`${system}/${steps}, ${callers}, ${(times.length / took).toFixed(1)}, ${at(0.5)}, ${at(0.99)}`);
agent.destroy();
