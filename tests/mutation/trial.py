"""Plugin of pytest: runs the collected tests on each mutant, in a fork of the process that has collected them.

The first fork runs all tests on the code as it is, and records the lines and the processor time of each test. A mutant
runs only the tests that run its lines, cheapest first, until one fails.
"""

import gc
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FunctionType

import pytest
from coverage import Coverage

from tests.mutation.mutants import Mutant

MEMORY_BYTES = 2**31
FAILED, BROKEN = 1, 3
"""Exit codes of a fork: a test failed; a mutant cannot be installed."""


class Verdict(StrEnum):
    """Result of the tests on a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    TIMED_OUT = "timed out"


@dataclass(slots=True)
class Trials:
    """Runs all mutants, once pytest has collected the tests."""

    paths: Sequence[Path]
    mutants: Sequence[Mutant]
    report: Callable[[Mutant, Verdict, int], None]
    """Receives each mutant, its verdict, and the number of tests that run its lines."""
    folder: Path
    is_mutant: bool = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Replaces the loop over the tests. Raises: pytest.UsageError."""
        if _forked(partial(self._record, session), limit_s=10_000) is not Verdict.SURVIVED:
            raise pytest.UsageError("cannot test mutants: a test fails without a mutant; run the tests with pytest")
        recording = json.loads((self.folder / "recording.json").read_text())
        cpu_s, tests, functions = recording["cpu_s"], {item.nodeid: item for item in session.items}, _functions()
        for mutant in self.mutants:
            lines = recording["lines"][str(mutant.path)]
            covering = {test for line in mutant.lines for test in lines.get(str(line), []) if test in tests}
            items = [tests[test] for test in sorted(covering, key=cpu_s.__getitem__)]
            limit_s = 5 + 3 * sum(cpu_s[test] for test in covering)
            trial = partial(self._try, mutant, functions[str(mutant.path.absolute())], items)
            self.report(mutant, _forked(trial, limit_s) if items else Verdict.SURVIVED, len(items))
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Ends a fork at its first failure."""
        if report.failed:
            if not self.is_mutant:
                sys.stderr.write(f"\n{report.nodeid}\n{report.longreprtext}\n")
            os._exit(FAILED)

    def _record(self, session: pytest.Session) -> None:
        measured = Coverage(data_file=None, config_file=False, include=[str(path) for path in self.paths])
        measured.start()
        ended_at_s = [time.process_time(), *(time.process_time() for _ in _run(session.items, measured.switch_context))]
        measured.stop()
        tests = [item.nodeid for item in session.items]
        cpu_s = {test: end - begin for test, (begin, end) in zip(tests, pairwise(ended_at_s), strict=True)}
        data = measured.get_data()
        lines = {str(path): data.contexts_by_lineno(str(path.absolute())) for path in self.paths}
        (self.folder / "recording.json").write_text(json.dumps({"cpu_s": cpu_s, "lines": lines}))

    def _try(self, mutant: Mutant, functions: Sequence[FunctionType], items: Sequence[pytest.Item]) -> None:
        self.is_mutant = True
        items[0].config.pluginmanager.unregister(name="terminalreporter")
        codes = mutant.codes()
        for function in functions:
            code = function.__code__
            function.__code__ = codes.get((code.co_qualname, code.co_firstlineno), code)
        for _ in _run(items):
            pass


def _functions() -> dict[str, list[FunctionType]]:
    """Returns the functions of this process by their files."""
    gc.unfreeze()  # conftest.py freezes objects, which are not listed then
    files: dict[str, list[FunctionType]] = {}
    for each in gc.get_objects():
        if type(each) is FunctionType:  # `isinstance` would import lazy modules
            files.setdefault(each.__code__.co_filename, []).append(each)
    gc.freeze()
    return files


def _run(items: Sequence[pytest.Item], before: Callable[[str], object] = lambda test: None) -> Iterator[str]:
    """Runs tests; yields the id of each after it. before: is called with the id before it."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        before(item.nodeid)
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        yield item.nodeid


def _forked(run: Callable[[], None], limit_s: float) -> Verdict:
    """Runs in a fork: at most `limit_s` of processor time; on a busy machine in up to fifty times as long."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        limit = int(time.process_time() + limit_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        try:
            run()
        except BaseException:
            traceback.print_exc()
            os._exit(BROKEN)
        os._exit(0)
    watch = os.pidfd_open(pid)
    is_over = bool(select.select([watch], [], [], 60 + 50 * limit_s)[0])
    os.close(watch)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # also programs that a test has started
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == BROKEN:
        raise pytest.UsageError("cannot test mutants: see the exception above")
    if not is_over or status in {-signal.SIGXCPU, -signal.SIGKILL}:
        return Verdict.TIMED_OUT
    return Verdict.KILLED if status else Verdict.SURVIVED
