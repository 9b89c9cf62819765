"""Against a daemon that this file plays: `python3 -m unittest discover -s tests`."""

import json
import pathlib
import socket
import sys
import threading
import time
import unittest
from unittest import mock
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "src"))

from moonswarm_worker import Failed, Refused, Result, Skip, Task, Worker  # noqa: E402
from moonswarm_worker import _http, _worker  # noqa: E402


def deadline(seconds):
    return (datetime.now(timezone.utc) + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


class Daemon:
    """Gives out tasks, and notes what comes back. `trouble` may answer a request otherwise.

    `follows` returns the inputs of the tasks that an output brings about. An `older` daemon refuses `lease` beside
    results.
    """

    def __init__(self, inputs, lease=30, follows=lambda output: [], older=False):
        self.lock = threading.Condition()
        self.inputs, self.lease, self.follows, self.older = list(inputs), lease, follows, older
        self.results, self.requests, self.beats, self.cancel = {}, [], [], set()
        #: The requests for tasks, by themselves and beside results; how many tasks were given, and the most at a time.
        self.polls, self.beside, self.given, self.at_once = [], [], 0, 0
        self.trouble = lambda path, count: None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, *args):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                with outer.lock:
                    outer.requests.append(self.path)
                    outer.lock.notify_all()
                    count = sum(path == self.path for path in outer.requests)
                    found = outer.trouble(self.path, count)
                    if found == "cut":
                        self.close_connection = True
                        return
                    status, answer = found or outer.answer(self.path, json.loads(body))
                if answer is None or isinstance(answer, bytes):
                    data = answer or b""
                else:
                    data = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        # A worker that stops closes its connections.
        self.server.handle_error = lambda request, address: None
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, path, body):
        if path == "/v1/worker/lease":
            self.polls.append(body)
            if not self.inputs:
                self.lock.wait(0.05)
                return 204, None
            return 200, self.give(body)
        if path == "/v1/worker/results":
            if "lease" in body:
                self.beside.append(body["lease"])
                if self.older:
                    return 422, {"code": "unknown_field", "detail": "unknown field `lease`, expected `results`"}
            for item in body["results"]:
                self.results[item["handle"]] = item["result"]
                self.inputs += self.follows(item["result"].get("output"))
            self.lock.notify_all()
            answer = {"items": [{"status": 200, "accepted": True, "repeated": False}] * len(body["results"])}
            if "lease" in body:
                answer["leased"] = self.give(body["lease"])
            return 200, answer
        if path == "/v1/worker/heartbeats":
            self.beats.append(body["handles"])
            self.lock.notify_all()
            kept = [{"status": 200, "deadline": deadline(self.lease), "cancel": it in self.cancel} for it in body["handles"]]
            return 200, {"items": kept}
        return 404, {"code": "no_route"}

    def give(self, wanted):
        taken, self.inputs = self.inputs[: wanted["max"]], self.inputs[wanted["max"] :]
        first, self.given = self.given, self.given + len(taken)
        self.at_once = max(self.at_once, self.given - len(self.results))
        return [self.task(n, given) for n, given in enumerate(taken, first)]

    def hold(self, path):
        """Lets requests to `path` wait until the function that this returns is called."""
        go = threading.Event()

        def trouble(asked, count):
            if asked == path:
                self.lock.wait_for(go.is_set, 20)

        def release():
            with self.lock:
                go.set()
                self.lock.notify_all()

        self.trouble = trouble
        return release

    def task(self, n, given):
        prompt = {
            "run": "run_1", "agent": "a", "attempt": 1, "prompt": "p", "system": None, "input": given,
            "context": {"idempotency_key": f"k{n}"}, "output_schema": None,
        }
        return {"task": f"task_{n}", "handle": f"wh_{n}", "deadline": deadline(self.lease), "prompt": prompt}

    def until(self, done):
        with self.lock:
            assert self.lock.wait_for(done, 20), (self.requests, self.results)


def in_turn(answers):
    """The trouble that answers the first requests to a path with those of `answers` for it, one after another."""
    return lambda path, n: dict(enumerate(answers.get(path, []), 1)).get(n)


def receive(client):
    """Reads a request whose body is `{}`."""
    while not client.recv(1 << 16).endswith(b"{}"):
        pass


class WorkerTest(unittest.TestCase):
    def setUp(self):
        self.pause, _http.PAUSE = _http.PAUSE, (0.01, 0.05)

    def tearDown(self):
        _http.PAUSE = self.pause

    def start(self, daemon, work, **options):
        worker = Worker(daemon.url, "t", "q", work, **options)
        thread = threading.Thread(target=worker.run)
        thread.start()
        self.addCleanup(lambda: (worker.stop(now=True), thread.join(20), daemon.server.shutdown()))
        return worker, thread

    def listening(self):
        """A listener, and a connection that the first request opens to it."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        return listener, _http.Connection(f"http://127.0.0.1:{listener.getsockname()[1]}")

    def test_each_way_to_end_a_task_is_reported_as_what_it_is(self):
        def work(task: Task):
            how = task.input
            if how == "skip":
                raise Skip("nothing to do")
            if how == "fail":
                raise Failed("busy", retryable=True, data=[1])
            if how == "bug":
                raise KeyError("x")
            if how == "odd":
                return {1, 2}
            if how == "full":
                return Result(7, usage={"input": 3}, effects=[{"type": "log"}])
            return {"key": task.idempotency_key}

        daemon = Daemon(["plain", "skip", "fail", "bug", "odd", "full"])
        worker, thread = self.start(daemon, work, max_in_flight=3)
        daemon.until(lambda: len(daemon.results) == 6)
        worker.stop()
        thread.join(20)
        self.assertFalse(thread.is_alive())
        found = [daemon.results[f"wh_{n}"] for n in range(6)]
        self.assertEqual(found[0], {"output": {"key": "k0"}})
        self.assertEqual(found[1], {"skip": "nothing to do"})
        self.assertEqual(found[2], {"ok": False, "error": {"message": "busy", "retryable": True, "data": [1]}})
        self.assertIn("KeyError", found[3]["error"]["message"])
        self.assertIn("TypeError", found[4]["error"]["message"])
        self.assertEqual(found[5], {"output": 7, "usage": {"input": 3}, "effects": [{"type": "log"}]})

    def test_whatever_a_task_throws_or_returns_is_reported_and_the_worker_goes_on(self):
        class Mute(Exception):
            def __str__(self):
                raise ValueError("no text")

        changed = {}

        def work(task: Task):
            how = task.input
            if how == "exit":
                sys.exit(3)
            if how == "mute":
                raise Mute()
            if how == "odd data":
                raise Failed("busy", retryable=True, data={(1, 2): 3})
            if how == "large":
                return "x" * (8 << 20)
            changed[how] = 1
            return changed

        daemon = Daemon(["exit", "mute", "odd data", "large", "one", "two"])
        self.start(daemon, work)
        daemon.until(lambda: len(daemon.results) == 6)
        found = [daemon.results[f"wh_{n}"] for n in range(6)]
        self.assertEqual([it["error"]["message"] for it in found[:2]], ["SystemExit: 3", "Mute"])
        self.assertEqual(found[2]["error"], {"message": "busy", "retryable": True, "data": "{(1, 2): 3}"})
        self.assertIn("at most 8388608", found[3]["error"]["message"])
        self.assertEqual([it["output"] for it in found[4:]], [{"one": 1}, {"one": 1, "two": 1}])

    def test_a_body_that_is_refused_before_its_end_is_not_sent_again_and_again(self):
        listener, connection = self.listening()
        problem = b'{"code": "too_large", "detail": "no"}'

        def refuse():
            client, _ = listener.accept()
            with client:
                client.recv(1)
                client.sendall(b"HTTP/1.1 413 no\r\ncontent-length: %d\r\n\r\n%s" % (len(problem), problem))

        thread = threading.Thread(target=refuse, daemon=True)
        thread.start()
        with self.assertRaises(Refused) as refused:
            connection.ask("t", "POST", "/", b"x" * (64 << 20))
        self.assertEqual(refused.exception.code, "too_large")
        thread.join(20)

    def test_a_daemon_that_is_away_is_waited_for_and_nothing_is_lost(self):
        daemon = Daemon(range(40))
        # 502 and 504 are of a proxy before it.
        cut, busy, bad, late = "cut", (503, {"code": "stopping"}), (502, None), (504, None)
        away = {"/v1/worker/lease": [cut, bad, None, late], "/v1/worker/results": [cut, busy, None, bad, late]}
        daemon.trouble = in_turn(away)
        self.start(daemon, lambda task: task.input, max_in_flight=8)
        daemon.until(lambda: len(daemon.results) == 40)
        self.assertEqual({it["output"] for it in daemon.results.values()}, set(range(40)))

    def test_leases_are_renewed_and_a_task_that_is_not_wanted_is_told(self):
        daemon, seen = Daemon(["long"], lease=1), []

        def work(task: Task):
            seen.append(task.cancelled.wait(20))

        self.start(daemon, work)
        daemon.until(lambda: len(daemon.beats) >= 3)
        with daemon.lock:
            daemon.cancel.add("wh_0")
        daemon.until(lambda: seen == [True])
        self.assertEqual(daemon.results, {}, "nobody wants its result")

    def test_a_task_that_is_not_wanted_is_not_renewed_any_more(self):
        daemon, told, go = Daemon(["lost", "kept"], lease=1), threading.Event(), threading.Event()
        self.addCleanup(go.set)

        def work(task: Task):
            if task.input == "lost":
                task.cancelled.wait(20)
                told.set()
            go.wait(20)

        self.start(daemon, work, max_in_flight=2)
        daemon.until(lambda: ["wh_0", "wh_1"] in daemon.beats)
        with daemon.lock:
            daemon.cancel.add("wh_0")
        self.assertTrue(told.wait(20))
        with daemon.lock:
            seen = len(daemon.beats)
        daemon.until(lambda: len(daemon.beats) >= seen + 2)
        self.assertEqual(daemon.beats[seen:], [["wh_1"]] * (len(daemon.beats) - seen))

    def test_heartbeats_that_fail_are_told_once_and_so_is_their_end(self):
        daemon, go = Daemon(["long"], lease=2), threading.Event()
        self.addCleanup(go.set)
        trouble = ["cut", (503, {"code": "stopping"}), (502, None)]
        daemon.trouble = in_turn({"/v1/worker/heartbeats": trouble})
        with self.assertLogs("moonswarm_worker") as logs:
            self.start(daemon, lambda task: go.wait(20))
            daemon.until(lambda: len(daemon.beats) >= 2)
        self.assertEqual(len(logs.output), 2, logs.output)
        self.assertIn("RemoteDisconnected", logs.output[0])
        self.assertIn("work again", logs.output[1])

    def test_pauses_after_trouble_grow_and_leave_time_before_the_lease_ends(self):
        at = "1970-01-01T01:00:30Z"
        with mock.patch.object(_worker, "time", SimpleNamespace(monotonic=lambda: now)):
            now = 100.0
            kept = _worker._Kept.of(None, at, ahead=3500.0)
            self.assertEqual((kept.beat_at, kept.ends_at), (110.0, 130.0))
            pauses = []
            for _ in range(7):
                kept.put_off(None)
                pauses.append(round(kept.beat_at - now, 3))
            self.assertEqual(pauses, [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
            kept.put_off(9.0)
            self.assertEqual(kept.beat_at, 109.0)
            now = 124.0
            kept.put_off(9.0)
            self.assertEqual(kept.beat_at, 126.0)
            now = 130.0
            kept.put_off(9.0)
            self.assertEqual(kept.beat_at, 139.0)
            kept.renewed("1970-01-01T01:01:00Z", ahead=3500.0)
            kept.put_off(None)
            self.assertAlmostEqual(kept.beat_at, 130.2)

    def test_a_lease_that_has_ended_is_tried_each_third_of_its_time(self):
        # A daemon that was away gives it one more such time from its start on.
        with mock.patch.object(_worker, "time", SimpleNamespace(monotonic=lambda: now)):
            now = 100.0
            kept = _worker._Kept.of(None, "1970-01-01T01:00:03Z", ahead=3500.0)
            now = 104.0
            for _ in range(6):
                kept.put_off(None)
            self.assertEqual((kept.pause, kept.beat_at), (5.0, 105.0))
            kept.put_off(30.0)
            self.assertEqual(kept.beat_at, 105.0)

    def test_a_heartbeat_that_hangs_leaves_time_for_the_next(self):
        daemon, go = Daemon(["long"], lease=3), threading.Event()
        path, release = "/v1/worker/heartbeats", daemon.hold("/v1/worker/heartbeats")
        self.addCleanup(lambda: (go.set(), release()))
        self.start(daemon, lambda task: go.wait(20))
        daemon.until(lambda: path in daemon.requests)
        began = time.monotonic()
        daemon.until(lambda: daemon.requests.count(path) >= 2)
        self.assertLess(time.monotonic() - began, 3)

    def test_an_answer_that_is_none_of_a_daemon_is_trouble_like_any_other(self):
        daemon, go = Daemon(["one", "two"], lease=2), threading.Event()
        odd = [(200, b"<html>back soon</html>"), (200, {"status": "ok"}), (200, [])]
        away = {"/v1/worker/lease": odd[:2], "/v1/worker/results": odd, "/v1/worker/heartbeats": odd + [(200, None)]}
        daemon.trouble = in_turn(away)
        worker, thread = self.start(daemon, lambda task: go.wait(20))
        daemon.until(lambda: daemon.beats)
        go.set()
        daemon.until(lambda: len(daemon.results) == 2)
        worker.stop()
        thread.join(20)
        self.assertIsNone(worker._failure)

    def test_a_stop_ends_what_connects(self):
        _, connection = self.listening()
        connect, most = _http.http.client.HTTPConnection.connect, []

        def stopped(opened):
            most.append(opened.timeout)
            connection.shut()
            connect(opened)

        with mock.patch.object(_http.http.client.HTTPConnection, "connect", stopped):
            for _ in range(2):
                with self.assertRaisesRegex(_http.Away, "stopped"):
                    connection.ask("t", "POST", "/", b"{}", timeout=10)
        self.assertEqual(most, [5.0], "and nothing connects after it")

    def test_a_stop_ends_a_request_that_waits(self):
        listener, connection = self.listening()
        found = []

        def ask():
            try:
                connection.ask("t", "POST", "/", b"{}", timeout=60)
            except _http.Away as away:
                found.append(away)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        client, _ = listener.accept()
        self.addCleanup(client.close)
        receive(client)
        connection.shut()
        thread.join(20)
        self.assertEqual(len(found), 1)

    def test_a_stop_ends_an_answer_whose_body_does_not_come(self):
        listener, connection = self.listening()
        # Of a connection that closes, http.client forgets the socket once it has the headers.
        head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 9\r\n\r\n"
        read, found = threading.Event(), []

        def monotonic():
            read.set()
            return time.monotonic()

        def ask():
            with self.assertRaises(_http.Away) as away:
                connection.ask("t", "POST", "/", b"{}", timeout=60)
            found.append(away.exception)

        with mock.patch.object(_http, "time", SimpleNamespace(time=time.time, monotonic=monotonic)):
            thread = threading.Thread(target=ask, daemon=True)
            thread.start()
            client, _ = listener.accept()
            self.addCleanup(client.close)
            receive(client)
            client.sendall(head)
            self.assertTrue(read.wait(20))
            connection.shut()
            thread.join(20)
        self.assertEqual(len(found), 1)

    def test_a_result_is_measured_as_it_is_sent(self):
        def work(task: Task):
            if task.input == "lone":
                return "\ud800"
            if task.input == "lone text":
                raise OSError("no file \udcff")
            return "\u00e9" * (int(task.input) << 20)

        daemon = Daemon(["3", "5", "lone", "lone text"])
        self.start(daemon, work)
        daemon.until(lambda: len(daemon.results) == 4)
        found = [daemon.results[f"wh_{n}"] for n in range(4)]
        self.assertEqual(found[0], {"output": "\u00e9" * (3 << 20)})
        size = len(json.dumps({"output": ""})) + (10 << 20)
        self.assertIn(f"the result has {size} bytes", found[1]["error"]["message"])
        self.assertIn("UnicodeEncodeError", found[2]["error"]["message"])
        self.assertEqual(found[3]["error"]["message"], "OSError: no file ?")

    def test_the_date_of_an_answer_is_of_its_headers(self):
        listener, connection = self.listening()
        now, noted = [100.0], threading.Event()

        def serve():
            client, _ = listener.accept()
            with client:
                receive(client)
                client.sendall(b"HTTP/1.1 200 OK\r\ndate: Thu, 01 Jan 1970 01:00:00 GMT\r\ncontent-length: 1\r\n\r\n")
                noted.wait(2)
                now[0] = 160.0
                client.sendall(b"1")

        def monotonic():
            noted.set()
            return now[0]

        threading.Thread(target=serve, daemon=True).start()
        with mock.patch.object(_http, "time", SimpleNamespace(time=time.time, monotonic=monotonic)):
            connection.ask("t", "POST", "/", b"{}")
        self.assertEqual(connection.ahead, 3601.0 - 100.0)

    def test_leases_are_renewed_in_time_whatever_the_clock_of_the_worker_says(self):
        for wrong in (-3600, 3600):
            with self.subTest(wrong=wrong):
                clock = SimpleNamespace(time=lambda: time.time() + wrong, monotonic=time.monotonic)
                with mock.patch.object(_http, "time", clock), mock.patch.object(_worker, "time", clock):
                    daemon, go = Daemon(["long"], lease=4), threading.Event()
                    self.start(daemon, lambda task: go.wait(20))
                    began = time.monotonic()
                    daemon.until(lambda: daemon.beats)
                    took = time.monotonic() - began
                    go.set()
                    daemon.until(lambda: daemon.results)
                self.assertTrue(0.9 < took < 4, took)

    def test_a_connection_that_was_closed_while_idle_is_opened_anew_at_once(self):
        listener, connection = self.listening()
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d"
        closed = threading.Event()

        def serve():
            for answers in ([answer % 1], [answer % 2, answer[:9]]):
                client, _ = listener.accept()
                with client:
                    for text in answers:
                        receive(client)
                        client.sendall(text)
                closed.set()

        threading.Thread(target=serve, daemon=True).start()
        self.assertEqual(connection.ask("t", "POST", "/", b"{}"), 1)
        self.assertTrue(closed.wait(20))
        self.assertEqual(connection.ask("t", "POST", "/", b"{}"), 2)
        # What was answered in part is not repeated.
        with self.assertRaises(_http.Away):
            connection.ask("t", "POST", "/", b"{}")

    def test_a_stop_finishes_what_is_in_work_and_takes_nothing_new(self):
        daemon, began, go = Daemon(["one", "two"]), threading.Event(), threading.Event()

        def work(task: Task):
            began.set()
            go.wait(20)
            return task.input

        worker, thread = self.start(daemon, work)
        self.assertTrue(began.wait(20))
        worker.stop()
        go.set()
        thread.join(20)
        self.assertFalse(thread.is_alive())
        self.assertEqual(daemon.results, {"wh_0": {"output": "one"}})
        self.assertEqual(daemon.inputs, ["two"])
        self.assertEqual(daemon.beside, [], "the result is handed in alone")

    def test_a_chain_of_steps_needs_no_lease_request_a_step(self):
        daemon = Daemon([1], follows=lambda output: [output] if output <= 20 else [])
        polls = []

        def work(task: Task):
            polls.append(len(daemon.polls))
            return task.input + 1

        self.start(daemon, work, name="w", labels={"gpu": "true"})
        daemon.until(lambda: len(daemon.results) == 20)
        self.assertEqual(daemon.results["wh_19"], {"output": 21})
        self.assertEqual(polls, [1] * 20)
        same = {"queue": "q", "max": 1, "prompts": True, "worker": "w", "labels": {"gpu": "true"}}
        self.assertEqual(daemon.polls[0], {**same, "wait": "20s"})
        self.assertEqual(daemon.beside, [same] * 20)

    def test_tasks_in_work_are_never_more_than_the_slots(self):
        daemon = Daemon(range(100), follows=lambda output: [output + 100] if output < 100 else [])
        self.start(daemon, lambda task: task.input, max_in_flight=5)
        daemon.until(lambda: len(daemon.results) == 200)
        self.assertEqual(daemon.at_once, 5)
        self.assertTrue(daemon.beside)

    def test_the_slot_of_a_result_under_way_is_not_asked_for_twice(self):
        daemon = Daemon(["one"])
        release = daemon.hold("/v1/worker/results")
        self.start(daemon, lambda task: task.input, max_in_flight=2)
        daemon.until(lambda: "/v1/worker/results" in daemon.requests)
        seen = len(daemon.polls)
        # The first of them may have been under way already.
        daemon.until(lambda: len(daemon.polls) >= seen + 2)
        with daemon.lock:
            daemon.inputs += ["two", "three"]
        daemon.until(lambda: daemon.given >= 2)
        release()
        daemon.until(lambda: len(daemon.results) == 3)
        self.assertEqual([poll["max"] for poll in daemon.polls[1 : seen + 2]], [1] * (seen + 1))
        self.assertEqual(daemon.at_once, 2)

    def test_tasks_that_an_answer_brings_to_a_worker_that_drains_are_worked_off(self):
        daemon = Daemon(["one", "two", "three"])
        release = daemon.hold("/v1/worker/results")
        worker, thread = self.start(daemon, lambda task: task.input)
        daemon.until(lambda: "/v1/worker/results" in daemon.requests)
        worker.stop()
        release()
        thread.join(20)
        self.assertFalse(thread.is_alive())
        self.assertEqual(daemon.results, {"wh_0": {"output": "one"}, "wh_1": {"output": "two"}})
        self.assertEqual((len(daemon.beside), daemon.inputs), (1, ["three"]))

    def test_a_worker_that_gives_up_waits_for_no_answer_and_what_has_arrived_counts(self):
        daemon, began = Daemon(["one", "two"]), []
        release = daemon.hold("/v1/worker/results")
        self.addCleanup(release)
        worker, thread = self.start(daemon, lambda task: began.append(task.input))
        daemon.until(lambda: "/v1/worker/results" in daemon.requests)
        worker.stop(now=True)
        # It is held for longer.
        thread.join(10)
        self.assertFalse(thread.is_alive())
        release()
        daemon.until(lambda: daemon.given == 2)
        self.assertEqual((began, list(daemon.results)), (["one"], ["wh_0"]))
        # An answer that was read just before brings a task.
        worker._begin(daemon.task(2, "three"), 0.0)
        self.assertEqual(worker._open, {})

    def test_a_worker_that_can_start_no_thread_ends_with_the_reason(self):
        for fails_at in (1, 2):
            daemon, start = Daemon(["one", "two", "three"]), threading.Thread.start

            def refused(thread):
                target = getattr(thread, "_target", None)
                if getattr(target, "__func__", None) is Worker._attempt and daemon.given == fails_at:
                    raise RuntimeError("can't start new thread")
                start(thread)

            worker = Worker(daemon.url, "t", "q", lambda task: task.input)
            with mock.patch.object(threading.Thread, "start", refused), self.assertRaises(RuntimeError):
                worker.run()
            self.assertEqual((daemon.given, worker._open), (fails_at, {}))
            daemon.server.shutdown()

    def test_a_worker_that_cannot_go_on_ends_with_the_reason(self):
        daemon = Daemon(["one", "two"])
        worker = Worker(daemon.url, "t", "q", lambda task: task.input)
        self.addCleanup(daemon.server.shutdown)
        begin = worker._begin
        worker._begin = lambda lease, ahead: begin(lease if lease["handle"] == "wh_0" else {"task": "task_2"}, ahead)
        with self.assertRaises(KeyError):
            worker.run()

    def test_results_that_are_sent_again_by_a_worker_that_drains_ask_for_nothing(self):
        daemon = Daemon(["one", "two"])

        def trouble(path, count):
            if path == "/v1/worker/results" and count == 1:
                worker.stop()
                return "cut"

        daemon.trouble = trouble
        worker, thread = self.start(daemon, lambda task: task.input)
        thread.join(20)
        self.assertFalse(thread.is_alive())
        self.assertEqual(daemon.results, {"wh_0": {"output": "one"}})
        self.assertEqual(daemon.beside, [])

    def test_an_older_daemon_gets_the_same_results_without_the_lease(self):
        daemon = Daemon(range(40), older=True)
        self.start(daemon, lambda task: task.input, max_in_flight=4)
        daemon.until(lambda: len(daemon.results) == 40)
        self.assertEqual({it["output"] for it in daemon.results.values()}, set(range(40)))
        self.assertEqual(len(daemon.beside), 1, "it is not asked again")
        self.assertNotIn("/v1/worker/result", daemon.requests)

    def test_slots_are_free_again_after_an_answer_without_tasks(self):
        for none in ([], None):
            with self.subTest(leased=none):
                daemon = Daemon(range(9))
                give = daemon.give
                daemon.give = lambda wanted: give(wanted) if "wait" in wanted else none
                self.start(daemon, lambda task: task.input, max_in_flight=2)
                daemon.until(lambda: len(daemon.results) == 9)

    def test_a_token_that_may_not_lease_ends_the_worker(self):
        daemon = Daemon([])
        daemon.trouble = lambda path, n: (403, {"code": "forbidden_scope", "detail": "no"})
        with self.assertRaises(Refused) as refused:
            Worker(daemon.url, "t", "q", lambda task: None).run()
        self.assertEqual((refused.exception.status, refused.exception.code), (403, "forbidden_scope"))
        daemon.server.shutdown()

    def test_a_worker_whose_token_has_ended_finishes_what_it_has(self):
        daemon, ended = Daemon(["one", "two"]), (401, {"code": "unauthenticated", "detail": "no"})
        daemon.trouble = lambda path, n: ended if path == "/v1/worker/lease" and n > 1 else None
        worker = Worker(daemon.url, "t", "q", lambda task: worker._draining.wait(20), max_in_flight=3)
        with self.assertRaises(Refused):
            worker.run()
        self.assertEqual(daemon.results, {"wh_0": {"output": True}, "wh_1": {"output": True}})
        self.assertEqual(daemon.beside, [])
        daemon.server.shutdown()


if __name__ == "__main__":
    unittest.main()
