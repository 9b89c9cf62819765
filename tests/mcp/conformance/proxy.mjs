// Adds the token to what the conformance suite sends, which knows no credentials: proxy.mjs URL TOKEN.
// Prints the address that it listens at.
import http from "node:http";

const [target, token] = [new URL(process.argv[2]), process.argv[3]];
const server = http.createServer((request, response) => {
  const headers = { ...request.headers, authorization: `Bearer ${token}` };
  // The name of this proxy is that of the daemon; any other name stays as it is.
  const own = `127.0.0.1:${server.address().port}`;
  for (const name of ["host", "origin"]) {
    if (headers[name]) headers[name] = headers[name].replace(own, target.host);
  }
  const { hostname, port } = target;
  const onward = http.request({ hostname, port, path: request.url, method: request.method, headers });
  onward.on("response", (answer) => {
    response.writeHead(answer.statusCode, answer.headers);
    answer.pipe(response);
  });
  onward.on("error", () => response.destroy());
  response.on("close", () => onward.destroy());
  request.pipe(onward);
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
