#!/usr/bin/env python3
"""Measures runs that a driver lends to its helpers, over a PostgreSQL server of its own.

    benches/lent/run.py [--seconds 5] [--callers 32] [--pin]

With --pin, the driver has the first processor and the helpers the second. Needs PostgreSQL's programs, and
`cargo build --release` before. As root, the server runs as the user `postgres`.
"""
import argparse
import glob
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

PROGRAM = os.path.join(os.path.dirname(__file__), "../../target/release/moonswarm")
BUSY = "for i = 1, 60000 do sum = (sum * 31 + i) % 1000003 end"
SOURCE = """
local swarm = require("swarm")
return swarm.blueprint {
  name = "lent",
  agents = { echo = { operator = "echo" } },
  flow = function(ctx)
    local sum = 0
    for step = 1, 10 do
      %s
      sum = sum + ctx:run("echo", { n = step }).n
    end
    return sum
  end,
}
"""


class Server:
    def __init__(self, home):
        self.dir = os.path.join(home, "database")
        self.bin = sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1]
        os.mkdir(self.dir)
        if os.geteuid() == 0:
            os.chmod(home, 0o755)
            shutil.chown(self.dir, "postgres")
        self.call("initdb", "-D", self.dir, "-U", "moonswarm", "-E", "UTF8", "--locale=C", "--auth=trust")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories={self.dir}"
        self.call("pg_ctl", "-D", self.dir, "-w", "-l", f"{self.dir}/log", "-o", options, "start")

    def call(self, program, *args):
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        subprocess.run([*user, f"{self.bin}/{program}", *args], check=True, stdout=subprocess.DEVNULL)

    def make(self, name):
        where = ["-h", self.dir, "-p", str(self.port), "-U", "moonswarm", "-d", "postgres"]
        self.call("psql", "-q", *where, "-c", f"CREATE DATABASE {name}")
        return f"postgres://moonswarm@127.0.0.1:{self.port}/{name}?sslmode=disable"

    def stop(self):
        self.call("pg_ctl", "-D", self.dir, "-m", "fast", "-w", "stop")


def nodes_of(home, url, count, lend, pin):
    key = os.path.join(home, "key")
    subprocess.run([PROGRAM, "cluster", "key", "--out", key], check=True, stderr=subprocess.DEVNULL)
    nodes = []
    for number in range(count):
        data = os.path.join(home, str(number))
        env = dict(os.environ, MOONSWARM_STORE=url, MOONSWARM_CLUSTER_KEY=key, MOONSWARM_NODE=str(number),
                   MOONSWARM_CLUSTER_LEND=lend)
        place = ["taskset", "-c", str(min(number, 1))] if pin else []
        log = open(data + ".log", "w", encoding="utf-8")
        args = [*place, PROGRAM, "serve", "--data", data, "--listen", "127.0.0.1:0"]
        nodes.append(subprocess.Popen(args, env=env, stdout=log, stderr=log))
        while not os.path.exists(os.path.join(data, "admin.token")):
            time.sleep(0.1)
    # The helpers look for the driver once a second.
    time.sleep(3)
    with open(os.path.join(home, "0", "server.json"), encoding="utf-8") as file:
        address = json.load(file)["url"].removeprefix("http://")
    with open(os.path.join(home, "0", "admin.token"), encoding="utf-8") as file:
        return nodes, address, file.read().strip()


def load(address, token, source, callers, seconds):
    until, times = time.time() + seconds, []
    body = json.dumps({"source": source, "wait": "60s"})
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}

    def call():
        connection = http.client.HTTPConnection(address)
        while time.time() < until:
            since = time.time()
            connection.request("POST", "/v1/runs", body, headers)
            view = json.loads(connection.getresponse().read())
            assert view.get("status") == "completed", view
            times.append(time.time() - since)

    threads = [threading.Thread(target=call) for _ in range(callers)]
    since = time.time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(times) / (time.time() - since), sorted(times)[len(times) // 2]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--callers", type=int, default=32)
    parser.add_argument("--pin", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        server = Server(home)
        try:
            for what, lua in [("busy", BUSY), ("light", "")]:
                for number, (lend, count) in enumerate([("off", 1), ("auto", 3), ("even", 3)]):
                    place = os.path.join(home, f"{what}{number}")
                    os.mkdir(place)
                    url = server.make(f"{what}{number}")
                    nodes, address, token = nodes_of(place, url, count, lend, asked.pin)
                    source = SOURCE % lua
                    load(address, token, source, asked.callers, 2)
                    rate, median = load(address, token, source, asked.callers, asked.seconds)
                    for node in nodes:
                        node.send_signal(signal.SIGTERM)
                    for node in nodes:
                        node.wait()
                    line = f"{what:5} {lend:4} {count} nodes: {rate:7.1f} runs/s, median {median * 1000:6.1f} ms"
                    print(line, flush=True)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
