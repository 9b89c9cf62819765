"""A small MCP server for the tests: over its pipes, or over HTTP with a port of its own."""

import json
import os
import sys

TOOLS = [
    {
        "name": "add",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
    {"name": "words", "inputSchema": {"type": "object"}},
    {"name": "fail", "inputSchema": {"type": "object"}},
    {"name": "crash", "inputSchema": {"type": "object"}},
    {"name": "hang", "inputSchema": {"type": "object"}},
    {"name": "grow", "inputSchema": {"type": "object"}},
    {"name": "where", "inputSchema": {"type": "object"}},
]
TOLD = os.environ.get("TOLD", "")
if TOLD:
    for name in ["tell", "told"]:
        TOOLS.append({"name": name, "description": TOLD, "inputSchema": {"type": "object"}})
if os.environ.get("MORE"):
    for name in ["flood", "loosen"]:
        TOOLS.append({"name": name, "inputSchema": {"type": "object"}})
# The methods that fail once.
FAILS = []


def text(words, **more):
    return {"content": [{"type": "text", "text": words}], **more}


def call(name, arguments):
    if name == "add":
        total = arguments["a"] + arguments["b"]
        return text(str(total), structuredContent={"sum": total})
    if name == "words":
        return text("just words")
    if name == "fail":
        return text("no such file", isError=True)
    if name == "where":
        return text(json.dumps({"pid": os.getpid(), "env": sorted(os.environ)}))
    if name == "crash":
        print(TOLD and f"{TOLD} is", "out of cheese", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "told":
        return text(json.dumps({"told": TOLD}))
    if name == "tell":
        return text(TOLD, isError=True)
    if name == "grow":
        TOOLS.append({"name": "grown", "inputSchema": {"type": "object"}})
        return text("grown")
    if name == "flood":
        return text("x" * (9 << 20))
    if name == "loosen":
        TOOLS[0]["inputSchema"] = {"type": "object"}
        FAILS.append("tools/list")
        return text("loose")
    if name == "grown":
        return text("new")
    return None


def answer(message):
    """The reply to a message; None for one that gets none."""
    if "id" not in message:
        return None
    method, params = message["method"], message.get("params") or {}
    reply = {"jsonrpc": "2.0", "id": message["id"]}
    if method == "initialize":
        reply["result"] = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "small", "version": "1"},
        }
    elif method in FAILS:
        FAILS.remove(method)
        reply["error"] = {"code": -32603, "message": "not now"}
    elif method == "tools/list":
        reply["result"] = {"tools": TOOLS}
    elif method == "ping":
        reply["result"] = {}
    elif method == "tools/call" and params["name"] != "hang":
        reply["result"] = call(params["name"], params.get("arguments") or {})
    elif method == "tools/call":
        return None
    else:
        reply["error"] = {"code": -32601, "message": "no such method"}
    return reply


def over_pipes():
    for line in sys.stdin:
        message = json.loads(line)
        reply = answer(message)
        if reply is not None:
            print(json.dumps(reply), flush=True)
        if message.get("method") == "tools/call" and message["params"]["name"] in ["grow", "loosen"]:
            print(
                json.dumps({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}),
                flush=True,
            )


def over_http():
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("X-Key") != "s3cret":
                return self.send(401, b"")
            reply = answer(json.loads(body))
            return self.send(202, b"") if reply is None else self.send(200, json.dumps(reply).encode())

        def do_GET(self):
            self.send(405, b"")

        def do_DELETE(self):
            self.send(200, b"")

        def send(self, status, body):
            self.send_response(status)
            if body:
                self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


over_http() if sys.argv[1:] == ["http"] else over_pipes()
