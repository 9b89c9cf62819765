// Stands between the conformance suite and a daemon: proxy.mjs URL TOKEN. Prints the address that it
// listens at.
//
// It adds the token to what the suite sends, which knows no credentials, and it serves the two tools by
// which the suite changes the lists of the server: each publishes a blueprint, as a person would.
import http from "node:http";

const [target, token] = [new URL(process.argv[2]), process.argv[3]];
const changes = { test_trigger_tool_change: "true", test_trigger_prompt_change: "{ prompt = true }" };
const authorization = `Bearer ${token}`;
let count = 0;

async function change(call) {
  count += 1;
  const name = call.params.name.replace("test_trigger_", "");
  const source = `return require("swarm").blueprint { name = "${name}", edition = 2,
    description = "Change ${count}.", mcp = ${changes[call.params.name]}, flow = function() return 1 end }`;
  const put = await fetch(new URL(`/v1/blueprints/${name}`, target), {
    method: "PUT",
    headers: { authorization, "content-type": "application/json" },
    body: JSON.stringify({ source }),
  });
  const content = [{ type: "text", text: `${put.status}` }];
  return { jsonrpc: "2.0", id: call.id, result: { resultType: "complete", content, isError: !put.ok } };
}

function onward(request, response, own, body) {
  const headers = { ...request.headers, authorization };
  // The name of this proxy is that of the daemon; any other name stays as it is.
  for (const name of ["host", "origin"]) {
    if (headers[name]) headers[name] = headers[name].replace(own, target.host);
  }
  const { hostname, port } = target;
  const sent = http.request({ hostname, port, path: request.url, method: request.method, headers });
  sent.on("response", (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  sent.on("error", () => response.destroy());
  response.on("close", () => sent.destroy());
  sent.end(body);
}

const server = http.createServer(async (request, response) => {
  const own = `127.0.0.1:${server.address().port}`;
  const pieces = [];
  try {
    for await (const piece of request) pieces.push(piece);
  } catch {
    return;
  }
  const body = Buffer.concat(pieces);
  let call = null;
  try {
    call = JSON.parse(body);
  } catch {
    // It is for the daemon to say what is wrong with it.
  }
  if (call?.method === "tools/call" && call.params?.name in changes) {
    const answer = JSON.stringify(await change(call));
    response.writeHead(200, { "content-type": "application/json" }).end(answer);
    return;
  }
  onward(request, response, own, body);
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
