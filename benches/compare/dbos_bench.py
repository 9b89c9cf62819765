"""Runs of ten steps in DBOS, as many at a time as threads, in one process: `dbos_bench.py URL THREADS SECONDS`."""

import sys
import threading
import time

from dbos import DBOS, DBOSConfig

url, threads, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
config: DBOSConfig = {
    "name": "compare",
    "system_database_url": url,
    "run_admin_server": False,
    "log_level": "ERROR",
    "sys_db_pool_size": threads,
}
DBOS(config=config)


@DBOS.step()
def step(number: int) -> int:
    return number


@DBOS.workflow()
def ten() -> int:
    return sum(step(number) for number in range(1, 11))


DBOS.launch()
times: list[float] = []


def call(until: float, keeps: bool) -> None:
    while time.perf_counter() < until:
        since = time.perf_counter()
        assert ten() == 55
        if keeps:
            times.append(time.perf_counter() - since)


def all_call(until: float, keeps: bool) -> None:
    callers = [threading.Thread(target=call, args=(until, keeps)) for _ in range(threads)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()


all_call(time.perf_counter() + 2, False)
begun = time.perf_counter()
all_call(begun + seconds, True)
took = time.perf_counter() - begun
times.sort()
at = lambda part: 1000 * times[int(part * (len(times) - 1))]
print(f"dbos/10, {threads}, {len(times) / took:.1f}, {at(0.5):.1f}, {at(0.99):.1f}", flush=True)
DBOS.destroy()
