"""Requests to the daemon: one kept connection for each thread that asks."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from email.utils import parsedate_to_datetime
from typing import Any, Callable, Dict, Optional
from urllib.parse import urlsplit

#: The bounds of the pause after something that may pass, in seconds; it doubles in between.
PAUSE = (0.5, 30.0)
#: The most time to connect, in seconds: nothing ends that sooner.
CONNECT = 5.0
#: Statuses that say: the same request again, later. 502 and 504 are of a proxy whose daemon is away.
LATER = (429, 502, 503, 504)


class Refused(Exception):
    """The daemon refused a request: `status`, and the stable `code` and `detail` of its reason."""

    def __init__(self, status: int, problem: Dict[str, Any]) -> None:
        self.status = status
        self.code = str(problem.get("code") or f"http_{status}")
        self.detail = str(problem.get("detail") or "")
        super().__init__(f"{self.code}: {self.detail}")


class Away(Exception):
    """The daemon cannot be reached or is too busy: the same request may succeed later."""

    def __init__(self, reason: str, retry_after: Optional[float] = None) -> None:
        self.retry_after = retry_after
        super().__init__(reason)


class Connection:
    """A connection that is opened when it is needed. It belongs to one thread; `shut` may be called
    by another, to end a request that waits."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the URL of a daemon, such as http://127.0.0.1:7700")
        self._parts = parts
        self._open: Optional[http.client.HTTPConnection] = None
        #: That of the connection, which forgets it while it reads the last answer.
        self._sock: Optional[socket.socket] = None
        self._shut = False
        #: The time at the daemon less that of the monotonic clock here, in seconds, as of the last answer.
        self.ahead = time.time() - time.monotonic()

    def ask(
        self,
        token: str,
        method: str,
        path: str,
        body: Optional[bytes] = None,
        kind: str = "application/json",
        timeout: float = 60.0,
    ) -> Any:
        """Sends one request and returns the JSON of its answer; None for an empty one."""
        headers = {"Authorization": f"Bearer {token}"}
        if body is not None:
            headers["Content-Type"] = kind
        connection = self._open or self._connect(timeout)
        self._open = connection
        was_open = connection.sock is not None
        answer: Optional[http.client.HTTPResponse] = None
        try:
            self._goes_on()
            if connection.sock is None:
                connection.timeout = min(timeout, CONNECT)
                connection.connect()
                self._sock = connection.sock
                # While it connects, `shut` finds no socket.
                self._goes_on()
            connection.sock.settimeout(timeout)
            try:
                connection.request(method, self._parts.path.rstrip("/") + path, body, headers)
            except (BrokenPipeError, ConnectionResetError):
                # A body that is too large is refused before its end: the answer may be there.
                if connection.sock is None:
                    raise
            answer = connection.getresponse()
            # The body may take long.
            ahead = _wall(answer.getheader("Date")) - time.monotonic()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            # The daemon closes connections that are idle.
            is_stale = was_open and answer is None and isinstance(error, ConnectionError)
            self.close()
            if is_stale:
                return self.ask(token, method, path, body, kind, timeout)
            raise Away(f"{type(error).__name__}: {error}") from error
        if answer.will_close:
            self.close()
        if answer.status in LATER:
            raise Away(f"the daemon answered {answer.status}", _seconds(answer.getheader("Retry-After")))
        if answer.status >= 300:
            raise Refused(answer.status, _object(data))
        try:
            found = json.loads(data) if data else None
        except ValueError:
            # The page of a proxy.
            raise Away("the answer is no JSON") from None
        self.ahead = ahead
        return found

    def shut(self) -> None:
        """Ends the request that waits, and refuses those that come."""
        self._shut = True
        sock = self._sock
        if sock is not None:
            try:
                # Of the system, not of TLS, whose state is that of the thread that waits.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
            except OSError:
                pass

    def _goes_on(self) -> None:
        if self._shut:
            self.close()
            raise Away("stopped")

    def close(self) -> None:
        """Closes the connection; the next request opens another one."""
        connection, self._open, self._sock = self._open, None, None
        if connection is not None:
            connection.close()

    def _connect(self, timeout: float) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        assert self._parts.hostname is not None
        return kind(self._parts.hostname, self._parts.port, timeout=timeout)


class Pauses:
    """Pauses that grow while something is away, and begin anew once it is back."""

    def __init__(self) -> None:
        self._next = PAUSE[0]

    def reset(self) -> None:
        self._next = PAUSE[0]

    def wait(self, ended: threading.Event, asked: Optional[float]) -> None:
        """Waits; not longer than until `ended` is set."""
        pause = min(max(asked or 0.0, self._next), PAUSE[1])
        self._next = min(self._next * 2, PAUSE[1])
        # Workers that lost the same daemon do not all come back at the same moment.
        ended.wait(pause * random.uniform(0.8, 1.2))


def patiently(ask: Callable[[], Any], ended: threading.Event, note: Callable[[str], None]) -> Any:
    """Asks until there is an answer or `ended` is set; then the last `Away` is raised."""
    pauses = Pauses()
    while True:
        try:
            return ask()
        except Away as away:
            if ended.is_set():
                raise
            note(str(away))
            pauses.wait(ended, away.retry_after)


def _seconds(text: Optional[str]) -> Optional[float]:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _wall(date: Optional[str]) -> float:
    """The latest time that a `Date` means, which has whole seconds; without one, the time here."""
    try:
        return parsedate_to_datetime(date).timestamp() + 1 if date else time.time()
    except (TypeError, ValueError):
        return time.time()


def _object(data: bytes) -> Dict[str, Any]:
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
