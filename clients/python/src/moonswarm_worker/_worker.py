"""The worker: leases, threads, results and heartbeats."""

from __future__ import annotations

import json
import logging
import signal
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple
from urllib.parse import quote

from ._http import LATER, Away, Connection, Pauses, Refused, patiently

log = logging.getLogger("moonswarm_worker")

#: The most tasks of one lease, and results or heartbeats of one request.
MOST_LEASED, MOST_ITEMS = 100, 200
#: The most bytes of the results of one request; a larger one goes by itself.
MOST_BYTES = 4 << 20
#: The most bytes of one result that the daemon takes.
MOST_RESULT = 8 << 20
#: How long a request for tasks waits at the daemon, in seconds.
POLL = 20
#: The bounds of the time between two heartbeats, in seconds.
BEAT = (0.2, 20.0)
#: The most time between two heartbeats after trouble, in seconds; it doubles up to that.
TROUBLE = 5.0
#: The bounds of the time that a request of heartbeats may take, in seconds.
BEAT_TAKES = (1.0, 5.0)


class Skip(Exception):
    """The task does not apply: its step is completed without a value."""


class Failed(Exception):
    """The task failed."""

    def __init__(self, message: str, retryable: bool = False, data: Any = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.data = data


@dataclass
class Result:
    """An output, with what it used and the effects that are applied with it."""

    output: Any
    usage: Optional[Mapping[str, Any]] = None
    effects: Sequence[Mapping[str, Any]] = ()


@dataclass
class Task:
    """A task in work."""

    id: str
    handle: str
    run: str
    agent: str
    attempt: int
    prompt: str
    system: Optional[str]
    input: Any
    context: Dict[str, Any]
    output_schema: Any
    session: Optional[str]
    #: Set once the result is not wanted any more.
    cancelled: threading.Event = field(default_factory=threading.Event)
    _url: str = ""

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt of the step."""
        return str(self.context["idempotency_key"])

    def progress(self, text: Optional[str] = None, percent: Optional[float] = None, data: Any = None) -> None:
        """Tells watchers how far the work is. It is not stored; a daemon that is away misses it."""
        said = {"text": text, "percent": percent, "data": data}
        body = {name: value for name, value in said.items() if value is not None}
        try:
            self._ask("POST", "/v1/worker/progress", json.dumps(body).encode(), "application/json")
        except Away as away:
            log.info("%s: progress: %s", self.id, away)

    def artifact(self, name: str, data: bytes) -> Dict[str, Any]:
        """Sends a file, which is published with the result."""
        path = f"/v1/worker/artifact?name={quote(name, safe='')}"
        send = lambda: self._ask("POST", path, data, "application/octet-stream")  # noqa: E731
        sent: Dict[str, Any] = patiently(send, self.cancelled, lambda why: log.warning("%s: %s", self.id, why))
        return sent

    def _ask(self, method: str, path: str, body: bytes, kind: str) -> Any:
        connection = Connection(self._url)
        try:
            return connection.ask(self.handle, method, path, body, kind)
        finally:
            connection.close()


@dataclass
class _Kept:
    task: Task
    #: When its lease is renewed and when it ends, on the monotonic clock.
    beat_at: float
    ends_at: float
    #: A third of its time, as of the last renewal.
    third: float = BEAT[0]
    #: The next pause after trouble.
    pause: float = BEAT[0]

    @classmethod
    def of(cls, task: Task, deadline: str, ahead: float) -> _Kept:
        kept = cls(task, 0.0, 0.0)
        kept.renewed(deadline, ahead)
        return kept

    def renewed(self, deadline: Optional[str], ahead: float) -> None:
        """Notes that the lease ends at `deadline`, RFC 3339 in UTC.

        The clock of the daemon is `ahead` of the monotonic one here. The lease is renewed after a third of its time.
        """
        now = time.monotonic()
        left = float("inf")
        if deadline:
            left = datetime.fromisoformat(deadline.replace("Z", "+00:00")).timestamp() - (now + ahead)
        self.third = max(left / 3, BEAT[0])
        self.beat_at, self.ends_at = now + min(self.third, BEAT[1]), now + left
        self.pause = BEAT[0]

    def put_off(self, asked: Optional[float]) -> None:
        """Puts off a renewal that failed, by a pause that grows, but not past a third of what is left of the lease.

        A daemon that was away gives each lease its whole time anew, so one that would have ended goes on.
        """
        now = time.monotonic()
        room = (self.ends_at - now) / 3 if self.ends_at > now else self.third
        self.beat_at = now + max(min(max(self.pause, asked or 0.0), room), BEAT[0])
        self.pause = min(self.pause * 2, TROUBLE)


class Worker:
    """Takes the tasks of a queue and calls `work` for each, in threads."""

    def __init__(
        self,
        url: str,
        token: str,
        queue: str,
        work: Callable[[Task], Any],
        *,
        max_in_flight: int = 1,
        name: Optional[str] = None,
        labels: Optional[Mapping[str, str]] = None,
    ) -> None:
        if max_in_flight < 1:
            raise ValueError("max_in_flight is at least 1")
        self._url, self._token, self._queue, self._work = url, token, queue, work
        self._most, self._name, self._labels = max_in_flight, name, dict(labels or {})
        self._leases, self._reports, self._beats = Connection(url), Connection(url), Connection(url)
        self._lock = threading.Condition()
        self._open: Dict[str, _Kept] = {}
        #: Handles with their results as JSON.
        self._results: List[Tuple[str, str]] = []
        self._sending = 0
        self._failure: Optional[BaseException] = None
        #: True from the first heartbeat that failed until all work again.
        self._troubled = False
        #: False once the daemon does not know `lease` beside results.
        self._combined = True
        self._draining, self._ended = threading.Event(), threading.Event()

    def run(self) -> None:
        """Works until it is told to stop; what it has is then finished first.

        SIGTERM and SIGINT drain, the second one gives up, if this is the main thread.

        Raises `Refused` if the daemon does not let it lease, or does so no more; what it has is finished before.
        """
        before = self._signals()
        helpers = [
            threading.Thread(target=self._help, args=(run,), name=f"moonswarm-{run.__name__}", daemon=True)
            for run in (self._report, self._beat)
        ]
        for helper in helpers:
            helper.start()
        try:
            try:
                self._take()
            except Refused as refused:
                # The token may have ended: for the tasks in work, their handles are enough.
                self._failure = refused
                self.stop()
                log.warning("%s: %s; finishing what is in work", self._queue, refused)
            with self._lock:
                while (self._open or self._results or self._sending) and not self._ended.is_set():
                    # Wakes now and then, so that signals are heard on every system.
                    self._lock.wait(0.5)
        finally:
            self._end()
            self._leases.close()
            for helper in helpers:
                helper.join()
            for number, handler in before.items():
                signal.signal(number, handler)
        if self._failure:
            raise self._failure

    def _help(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            # Without its helpers, a worker would keep what it has and report nothing.
            self._failure = error
            self._end()

    def stop(self, now: bool = False) -> None:
        """Asks for no more tasks; `run` returns once those in work are finished, or at once with `now`."""
        self._draining.set()
        # The daemon gives a task that nobody took to another worker.
        self._leases.shut()
        if now:
            self._end()

    def _end(self) -> None:
        self._draining.set()
        self._ended.set()
        # A result that has arrived counts; another worker does the task of one that has not.
        for connection in (self._leases, self._reports, self._beats):
            connection.shut()
        with self._lock:
            for kept in self._open.values():
                kept.task.cancelled.set()
            self._lock.notify_all()

    def _signals(self) -> Dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}

        def heard(number: int, frame: object) -> None:
            # A lock may be held by the code that was interrupted.
            now = self._draining.is_set()
            threading.Thread(target=self.stop, args=(now,), daemon=True).start()

        numbers = (signal.SIGTERM, signal.SIGINT)
        return {number: signal.signal(number, heard) for number in numbers}

    # Leases.

    def _take(self) -> None:
        pauses = Pauses()
        while not self._draining.is_set():
            with self._lock:
                if len(self._open) >= self._most:
                    self._lock.wait(0.5)
                    continue
                free = self._most - len(self._open)
            try:
                data = json.dumps({**self._wanted(free), "wait": f"{POLL}s"}).encode()
                leased = self._leases.ask(self._token, "POST", "/v1/worker/lease", data, timeout=POLL + 30)
                if not isinstance(leased or [], list):
                    raise Away("the answer is no list of tasks")
            except Away as away:
                if not self._draining.is_set():
                    log.warning("%s: %s", self._queue, away)
                    pauses.wait(self._draining, away.retry_after)
                continue
            pauses.reset()
            for lease in leased or []:
                self._begin(lease, self._leases.ahead)

    def _wanted(self, most: int) -> Dict[str, Any]:
        """The body of a request for up to `most` tasks."""
        body: Dict[str, Any] = {"queue": self._queue, "max": min(most, MOST_LEASED), "prompts": True}
        if self._name:
            body["worker"] = self._name
        if self._labels:
            body["labels"] = self._labels
        return body

    def _begin(self, lease: Dict[str, Any], ahead: float) -> None:
        # A prompt that did not fit into the answer is fetched by the task's own thread.
        prompt = lease.get("prompt")
        task = Task(
            id=lease["task"], handle=lease["handle"], run="", agent="", attempt=0, prompt="",
            system=None, input=None, context={}, output_schema=None, session=None, _url=self._url,
        )
        if prompt:
            _fill(task, prompt)
        with self._lock:
            if self._ended.is_set():
                # Once its lease has ended, it goes to another worker.
                return
            self._open[task.handle] = _Kept.of(task, lease["deadline"], ahead)
            self._lock.notify_all()
        try:
            threading.Thread(target=self._attempt, args=(task, bool(prompt)), daemon=True).start()
        except RuntimeError:
            # The system has no thread left, and this worker ends. Others get the task once its lease has ended.
            self._forget(task)
            raise

    # Tasks.

    def _attempt(self, task: Task, has_prompt: bool) -> None:
        try:
            if not has_prompt:
                connection = Connection(self._url)
                fetch = lambda: connection.ask(task.handle, "GET", "/v1/worker/prompt")  # noqa: E731
                _fill(task, patiently(fetch, task.cancelled, lambda why: log.warning("%s: %s", task.id, why)))
                connection.close()
            result = self._call(task)
        except (Away, Refused) as error:
            log.warning("%s: the prompt: %s", task.id, error)
            return self._forget(task)
        except BaseException:
            # Its lease would be renewed without end.
            self._forget(task)
            raise
        if task.cancelled.is_set():
            return self._forget(task)
        with self._lock:
            self._results.append((task.handle, result))
            self._lock.notify_all()

    def _call(self, task: Task) -> str:
        """Does the work, and returns the result as JSON."""
        try:
            # What is no JSON is found here, where it is the task's own failure.
            text = json.dumps(self._result(task), ensure_ascii=False, allow_nan=False)
            size = len(text.encode())
        except BaseException as error:  # noqa: BLE001: whatever it is, `SystemExit` too, it is the task's failure
            log.exception("%s failed", task.id)
            return _failure(_told(error))
        if size > MOST_RESULT:
            return _failure(f"the result has {size} bytes; at most {MOST_RESULT} are possible")
        return text

    def _result(self, task: Task) -> Dict[str, Any]:
        try:
            returned = self._work(task)
            result = returned if isinstance(returned, Result) else Result(returned)
            report: Dict[str, Any] = {"output": result.output}
            if result.usage:
                report["usage"] = dict(result.usage)
            if result.effects:
                report["effects"] = [dict(effect) for effect in result.effects]
            return report
        except Skip as skip:
            return {"skip": str(skip)}
        except Failed as failed:
            error = {"message": str(failed), "retryable": failed.retryable, "data": _plain(failed.data)}
            return {"ok": False, "error": error}

    def _forget(self, task: Task) -> None:
        with self._lock:
            self._open.pop(task.handle, None)
            self._lock.notify_all()

    # Results.

    def _report(self) -> None:
        connection = self._reports
        while True:
            with self._lock:
                while not self._results and not self._ended.is_set():
                    self._lock.wait()
                if self._ended.is_set():
                    break
                items: List[Tuple[str, str]] = []
                size = 0
                while self._results and len(items) < MOST_ITEMS:
                    size += len(self._results[0][1].encode())
                    if items and size > MOST_BYTES:
                        break
                    items.append(self._results.pop(0))
                self._sending = len(items)
            try:
                self._send(connection, items)
            finally:
                with self._lock:
                    self._sending = 0
                    for handle, _ in items:
                        self._open.pop(handle, None)
                    self._lock.notify_all()
        connection.close()

    def _send(self, connection: Connection, items: List[Tuple[str, str]]) -> None:
        note = lambda why: log.warning("results: %s", why)  # noqa: E731
        results = ",".join(f'{{"handle":{json.dumps(handle)},"result":{result}}}' for handle, result in items)
        leased: List[Dict[str, Any]] = []
        try:
            ask = lambda: self._hand_in(connection, results, len(items))  # noqa: E731
            sent = patiently(ask, self._ended, note)
            answers, leased = sent["items"], sent.get("leased") or []
        except Refused as refused:
            # The token may have ended: the handles are enough.
            log.warning("results: %s; sending them one by one", refused)
            answers = [{"status": 503} for _ in items]
        except Away as away:
            log.warning("results: given up: %s", away)
            return
        # Before the slots of these results are free, so that the poll does not ask for them too.
        for lease in leased:
            self._begin(lease, connection.ahead)
        for (handle, result), answer in zip(items, answers):
            self._settle(connection, handle, result, answer)

    def _hand_in(self, connection: Connection, results: str, count: int) -> Any:
        """Sends results. The same request asks for tasks in the slots that they free, unless the worker drains."""
        lease = ""
        if self._combined and not self._draining.is_set():
            lease = f',"lease":{json.dumps(self._wanted(count))}'
        try:
            body = f'{{"results":[{results}]{lease}}}'.encode()
            return _with_items(connection.ask(self._token, "POST", "/v1/worker/results", body))
        except Refused as refused:
            if not lease or refused.code != "unknown_field":
                raise
            # An older daemon: nothing of the request was accepted.
            self._combined = False
            return self._hand_in(connection, results, count)

    def _settle(self, connection: Connection, handle: str, result: str, answer: Dict[str, Any]) -> None:
        try:
            if answer["status"] in LATER:
                self._send_one(connection, handle, result)
            elif answer["status"] >= 300:
                raise Refused(answer["status"], answer.get("problem") or {})
        except Refused as refused:
            log.warning("%s: the result was refused: %s", handle, refused)
            if refused.status in (401, 403, 404, 409):
                return
            # Left alone, the attempt would count as interrupted and be done again and again.
            try:
                self._send_one(connection, handle, _failure(f"the daemon refused the result: {refused}"))
            except (Refused, Away) as again:
                log.warning("%s: %s", handle, again)
        except Away as away:
            log.warning("%s: given up: %s", handle, away)

    def _send_one(self, connection: Connection, handle: str, result: str) -> None:
        body = result.encode()
        ask = lambda: connection.ask(handle, "POST", "/v1/worker/result", body)  # noqa: E731
        patiently(ask, self._ended, lambda why: log.warning("result: %s", why))

    # Leases in work.

    def _beat(self) -> None:
        connection = self._beats
        while True:
            with self._lock:
                if self._ended.is_set():
                    break
                # One that is not wanted any more is not renewed, however long its work goes on.
                open_ = {handle: kept for handle, kept in self._open.items() if not kept.task.cancelled.is_set()}
                due = min((kept.beat_at for kept in open_.values()), default=None)
                pause = BEAT[1] if due is None else due - time.monotonic()
                if pause > 0:
                    # A lease that comes meanwhile may end sooner.
                    self._lock.wait(pause)
                    continue
            handles = list(open_)
            parts = [handles[start : start + MOST_ITEMS] for start in range(0, len(handles), MOST_ITEMS)]
            troubles = [self._beat_for(connection, part) for part in parts]
            if self._ended.is_set():
                break
            self._note(next((why for why in troubles if why), None))
        connection.close()

    def _note(self, trouble: Optional[str]) -> None:
        """Logs one line when heartbeats begin to fail, and one when they work again."""
        if trouble and not self._troubled:
            log.warning("heartbeats: %s", trouble)
        elif self._troubled and not trouble:
            log.warning("heartbeats: they work again")
        self._troubled = trouble is not None

    def _beat_for(self, connection: Connection, handles: List[str]) -> Optional[str]:
        """Renews leases, and returns what went wrong."""
        trouble = None
        with self._lock:
            third = min((self._open[handle].third for handle in handles if handle in self._open), default=0.0)
        # While a request hangs, no lease is renewed.
        timeout = min(max(third, BEAT_TAKES[0]), BEAT_TAKES[1])
        try:
            body = json.dumps({"handles": handles}).encode()
            sent = connection.ask(self._token, "POST", "/v1/worker/heartbeats", body, timeout=timeout)
            answers = _with_items(sent)["items"]
        except Away as away:
            # A daemon that restarts: the leases outlive that.
            trouble = str(away)
            answers = [{"status": 503, "retry_after": away.retry_after} for _ in handles]
        except Refused as refused:
            trouble = f"{refused}; sending them one by one"
            answers = [self._beat_one(connection, handle, timeout) for handle in handles]
        with self._lock:
            for place, handle in enumerate(handles):
                answer = answers[place] if place < len(answers) else {"status": 503}
                kept = self._open.get(handle)
                if kept is None:
                    continue
                if answer.get("cancel") or answer["status"] in (401, 403, 404, 409):
                    kept.task.cancelled.set()
                elif answer["status"] == 200:
                    kept.renewed(answer.get("deadline"), connection.ahead)
                else:
                    trouble = trouble or f"the daemon answered {answer['status']}"
                    kept.put_off(answer.get("retry_after"))
        return trouble

    def _beat_one(self, connection: Connection, handle: str, timeout: float) -> Dict[str, Any]:
        try:
            kept = connection.ask(handle, "POST", "/v1/worker/heartbeat", timeout=timeout)
            return {"status": 200, **kept} if isinstance(kept, dict) else {"status": 503}
        except Refused as refused:
            return {"status": refused.status}
        except Away as away:
            return {"status": 503, "retry_after": away.retry_after}


def _with_items(answer: Any) -> Dict[str, Any]:
    """Returns the answer, if it is one to a list."""
    if not isinstance(answer, dict) or not isinstance(answer.get("items"), list):
        raise Away("the answer has no items")
    return answer


def _failure(message: str) -> str:
    # A lone surrogate, as in the name of a file, is no JSON.
    message = message.encode("utf-8", "replace").decode()
    return json.dumps({"ok": False, "error": {"message": message}})


def _told(error: BaseException) -> str:
    """The name and the text of an exception; some have no text."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001
        return type(error).__name__


def _plain(data: Any) -> Any:
    """Returns data as JSON can hold it: in the place of what is no JSON is its text."""
    try:
        return json.loads(json.dumps(data, allow_nan=False, default=str))
    except Exception:  # noqa: BLE001
        return str(data)


def _fill(task: Task, prompt: Dict[str, Any]) -> None:
    task.run, task.agent, task.attempt = prompt["run"], prompt["agent"], prompt["attempt"]
    task.prompt, task.system, task.input = prompt["prompt"], prompt["system"], prompt["input"]
    task.context, task.output_schema = prompt["context"], prompt["output_schema"]
    task.session = prompt.get("session")
