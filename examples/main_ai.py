"""A moonswarm MainAI: takes a run's tasks over a WebSocket and works on them in parallel.

    pip install websockets
    export MOONSWARM_URL=http://127.0.0.1:7700 MOONSWARM_TOKEN=$(moonswarm token mint --role operator)
    python main_ai.py

It opens a session (or goes on with the one in MOONSWARM_SESSION and MOONSWARM_SESSION_TOKEN),
starts a sub-agent for every spawn, and comes back after every cut with the last number it saw.
Put your own agent into `sub_agent`; here it answers with what it was asked.
"""
import asyncio, json, os, urllib.request

import websockets

URL = os.environ.get("MOONSWARM_URL", "http://127.0.0.1:7700")
FINAL = {1000, 4000, 4001, 4002}  # closed, replaced, revoked, expired: do not come back


def http(method, path, token, body=None):
    request = urllib.request.Request(
        URL + path,
        data=None if body is None else json.dumps(body).encode(),
        method=method,
        headers={"Authorization": "Bearer " + token, "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


async def sub_agent(spawn):
    """The thin road: fetch the prompt with the handle, work, report over HTTP."""
    handle = spawn["handle"]
    task = await asyncio.to_thread(http, "GET", "/v1/worker/prompt", handle)
    output = {"agent": spawn["agent"], "answer": task["prompt"]}
    await asyncio.to_thread(http, "POST", "/v1/worker/result", handle, {"output": output})


class MainAi:
    def __init__(self, session, token):
        self.session, self.token, self.seen, self.agents = session, token, None, {}

    def start(self, spawn):
        key = (spawn["task"], spawn["attempt"])
        if key not in self.agents:  # a frame that comes again is the same task
            self.agents[key] = asyncio.create_task(self.work(key, spawn))

    async def work(self, key, spawn):
        try:
            await sub_agent(spawn)
        except OSError as error:  # the daemon is away, or the attempt is over
            print(f"{spawn['task']}: {error}", flush=True)
        finally:
            self.agents.pop(key, None)

    async def listen(self, socket):
        async def call(method, **params):
            call = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
            await socket.send(json.dumps(call))

        await call("tasks/list")  # what was given before, and perhaps forgotten
        async for text in socket:
            frame = json.loads(text)
            method, params = frame.get("method"), frame.get("params")
            if method == "task/spawn":
                self.start(params)
            elif method == "task/cancel":
                agent = self.agents.get((params["task"], params["attempt"]))
                if agent:
                    agent.cancel()
            elif frame.get("id") == "tasks/list":
                for task in frame["result"]["items"]:
                    self.start({**task, "task": task["id"]})
                if frame["result"]["next_cursor"]:
                    await call("tasks/list", cursor=frame["result"]["next_cursor"])
            if method in ("task/spawn", "task/cancel", "task/answer"):
                self.seen = frame["seq"]
                await call("ack", seq=self.seen)

    async def serve(self):
        pause = 0.1
        while True:
            resume = "" if self.seen is None else f"?resume={self.seen}"
            where = URL.replace("http", "ws", 1) + f"/v1/sessions/{self.session}/ws{resume}"
            headers = {"Authorization": "Bearer " + self.token}
            try:
                async with websockets.connect(where, additional_headers=headers) as socket:
                    print(f"connected as {self.session}", flush=True)
                    pause = 0.1
                    await self.listen(socket)
                    code = socket.close_code
            except websockets.InvalidStatus as refused:
                return print(f"refused: {refused}")
            except (OSError, websockets.ConnectionClosed) as cut:
                code = getattr(getattr(cut, "rcvd", None), "code", None)
            if code in FINAL:
                return print(f"over: {code}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, 5)


def main():
    session, token = os.environ.get("MOONSWARM_SESSION"), os.environ.get("MOONSWARM_SESSION_TOKEN")
    if not session:
        path = "/v1/operators/main-ai/sessions"
        opened = http("POST", path, os.environ["MOONSWARM_TOKEN"], {})
        session, token = opened["session"], opened["token"]
    asyncio.run(MainAi(session, token).serve())


if __name__ == "__main__":
    main()
