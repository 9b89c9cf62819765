"""The worker of tests/http/libraries.rs: doubles numbers until it is told to stop."""

import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "src"))

from moonswarm_worker import Task, Worker, _http  # noqa: E402

_http.PAUSE = (0.05, 0.5)


def work(task: Task) -> object:
    task.progress("doubling")
    if task.input["n"] == 1:
        task.artifact("one.md", b"# one")
    return {"double": task.input["n"] * 2}


Worker(os.environ["MOONSWARM_URL"], os.environ["QUEUE_TOKEN"], "doubles", work, max_in_flight=8).run()
print("stopped")
