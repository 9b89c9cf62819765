"""Workers for the queues of a moonswarm daemon."""

from ._http import Refused
from ._worker import Failed, Result, Skip, Task, Worker

__all__ = ["Failed", "Refused", "Result", "Skip", "Task", "Worker"]
__version__ = "0.1.0"
