"""Tasks of ten steps in Absurd, in two worker processes: `absurd_bench.py URL AT_A_TIME SECONDS`.

Enough tasks are queued first that the workers are never without one; what they complete in the time counts.
"""

import multiprocessing
import sys
import time

import psycopg
from absurd_sdk import Absurd

url, at_a_time, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
PROCESSES = 2
TASKS = 20_000


def app() -> Absurd:
    it = Absurd(url, queue_name="bench")

    @it.register_task(name="ten")
    def ten(params, ctx):
        total = 0
        for number in range(1, 11):
            total += ctx.step(f"step-{number}", lambda number=number: number)
        return total

    return it


def work() -> None:
    app().start_worker(concurrency=at_a_time // PROCESSES, poll_interval=0.01)


if __name__ == "__main__":
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(
            "SELECT absurd.spawn_task('bench', 'ten', '{}'::jsonb) FROM generate_series(1, %s)", (TASKS,)
        )
        workers = [multiprocessing.Process(target=work, daemon=True) for _ in range(PROCESSES)]
        for worker in workers:
            worker.start()

        def completed() -> int:
            return database.execute("SELECT count(*) FROM absurd.t_bench WHERE state = 'completed'").fetchone()[0]

        while completed() < at_a_time:
            time.sleep(0.05)
        time.sleep(2)
        before, since = completed(), time.perf_counter()
        time.sleep(seconds)
        done, took = completed() - before, time.perf_counter() - since
        assert before + done < TASKS, "there was always a task"
        # A task that is in work takes this long on average, by Little's law.
        print(f"absurd/10, {at_a_time}, {done / took:.1f}, {1000 * at_a_time * took / max(done, 1):.1f}, -", flush=True)
        for worker in workers:
            worker.terminate()
