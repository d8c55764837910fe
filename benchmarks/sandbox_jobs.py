"""Jobs per second of the sandbox on this machine.

    python -m benchmarks.sandbox_jobs [--jobs 1000] [--workers 2] [--levels namespaces restricted]

For each level, a job that prints a sum and one that tests a function as the reward `code_tests` does: jobs per second
with all workers busy, the latency of one job at a time (median and 95th percentile), processor time per job over all
processes, the time of a start, and that of a session until its first command.
"""

import argparse
import asyncio
import statistics
import sys
import time
from typing import get_args

import psutil

from astraflow.rewards.code_tests import test_job
from astraflow.sandbox.base import Job, JobLimits
from astraflow.sandbox.local import LocalSandbox
from astraflow.sandbox.options import LocalSandboxOptions

HEAD = "{:<12} {:<5} {:>9} {:>10} {:>10} {:>10} {:>9} {:>9}\n"
ROW = "{:<12} {:<5} {:>9.0f} {:>7.1f} ms {:>7.1f} ms {:>7.1f} ms {:>7.2f} s {:>7.2f} s\n"
FUNCTION = "def sum_below(limit):\n    return sum(range(limit))\n"
JOBS = {
    "sum": Job(source="print(sum(range(10)))"),
    "test": test_job(FUNCTION, {"kind": "call", "function": "sum_below", "arguments": [10]}, JobLimits()),
}
"""Jobs that print 45."""
LEVELS = get_args(LocalSandboxOptions.model_fields["level"].annotation)[:2]


def main() -> None:
    """Prints a table with a row for each level."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--levels", nargs="+", default=LEVELS, choices=LEVELS)
    options = parser.parse_args()
    sys.stdout.write(HEAD.format("level", "job", "jobs/s", "median", "95 %", "CPU/job", "start", "session"))
    for level in options.levels:
        for name in JOBS:
            sys.stdout.write(asyncio.run(row(level, name, workers=options.workers, jobs=options.jobs)))


async def row(level: str, name: str, *, workers: int, jobs: int) -> str:
    """Measures a job at a level; returns its row."""
    job = JOBS[name]
    sandbox = LocalSandbox(LocalSandboxOptions.model_validate({"level": level, "workers": workers}))
    started_at = time.perf_counter()
    await sandbox.start()
    try:
        start_s = time.perf_counter() - started_at
        await asyncio.gather(*(_run(sandbox, job) for _ in range(workers * 4)))
        used_before, begun_at = _cpu_s(sandbox), time.perf_counter()
        await asyncio.gather(*(_run(sandbox, job) for _ in range(jobs)))
        rate = jobs / (time.perf_counter() - begun_at)
        cpu_s = (_cpu_s(sandbox) - used_before) / jobs
        latencies = sorted([await _run(sandbox, job) for _ in range(jobs // 10)])
        session_s = await _session_s(sandbox)
    finally:
        await sandbox.close()
    p95 = latencies[int(0.95 * len(latencies))]
    return ROW.format(level, name, rate, statistics.median(latencies) * 1e3, p95 * 1e3, cpu_s * 1e3, start_s, session_s)


async def _run(sandbox: LocalSandbox, job: Job) -> float:
    begun_at = time.perf_counter()
    result = await sandbox.run(job)
    if result.stdout != "45\n":
        raise AssertionError(result)
    return time.perf_counter() - begun_at


async def _session_s(sandbox: LocalSandbox) -> float:
    begun_at = time.perf_counter()
    async with sandbox.session(JobLimits()) as session:
        await session.shell("true")
        return time.perf_counter() - begun_at


def _cpu_s(sandbox: LocalSandbox) -> float:
    """Returns the processor time of this process and of the workers with their jobs."""
    own = psutil.Process().cpu_times()
    workers = [psutil.Process(pid) for pid in sandbox.worker_pids()]
    processes = [process for worker in workers for process in (worker, *worker.children(recursive=True))]
    return own.user + own.system + sum(sum(process.cpu_times()[:4]) for process in processes)


if __name__ == "__main__":
    main()
