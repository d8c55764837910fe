"""Contract tests of every sandbox."""

import asyncio

import pytest

from astraflow.contract.errors import AstraFlowError
from astraflow.sandbox.base import Job, JobLimits, Level, Outcome, Sandbox

LIMITS = JobLimits(wall_s=10.0, cpu_s=1.0, memory_bytes=256 * 2**20, output_bytes=1000)


class SandboxSuite:
    """Tests to inherit. Fixture to provide: `sandbox` (started)."""

    async def test_a_program_reads_its_input_and_prints(self, sandbox: Sandbox) -> None:
        result = await sandbox.run(Job(source="print(input()[::-1])", stdin="abc\n", limits=LIMITS))
        assert (result.outcome, result.exit_status, result.stdout) == (Outcome.PASSED, 0, "cba\n")

    async def test_files_are_in_the_working_directory(self, sandbox: Sandbox) -> None:
        files = {"data.txt": "x", "parts/module.py": "VALUE = 7"}
        source = "import sys; sys.path.insert(0, 'parts'); import module; print(open('data.txt').read(), module.VALUE)"
        assert (await sandbox.run(Job(source=source, files=files, limits=LIMITS))).stdout == "x 7\n"

    async def test_an_exception_is_a_failure_with_its_traceback(self, sandbox: Sandbox) -> None:
        result = await sandbox.run(Job(source="1 / 0", limits=LIMITS))
        assert (result.outcome, result.exit_status) == (Outcome.FAILED, 1)
        assert "ZeroDivisionError" in result.stderr

    async def test_an_exit_status_is_reported(self, sandbox: Sandbox) -> None:
        result = await sandbox.run(Job(source="import sys; print('out'); sys.exit(3)", limits=LIMITS))
        assert (result.outcome, result.exit_status, result.stdout) == (Outcome.FAILED, 3, "out\n")

    async def test_an_endless_loop_is_a_timeout(self, sandbox: Sandbox) -> None:
        result = await sandbox.run(Job(source="while True: pass", limits=LIMITS))
        assert (result.outcome, result.exit_status) == (Outcome.TIMEOUT, None)

    async def test_too_much_memory_is_reported(self, sandbox: Sandbox) -> None:
        result = await sandbox.run(Job(source="block = bytearray(2**33)", limits=LIMITS))
        assert result.outcome is Outcome.MEMORY

    async def test_a_signal_is_a_crash(self, sandbox: Sandbox) -> None:
        result = await sandbox.run(Job(source="import os; os.kill(os.getpid(), 11)", limits=LIMITS))
        assert (result.outcome, result.exit_status) == (Outcome.CRASHED, None)

    async def test_output_is_cut_at_the_limit(self, sandbox: Sandbox) -> None:
        result = await sandbox.run(Job(source="print('x' * 5000)", limits=LIMITS))
        assert (result.outcome, len(result.stdout), result.is_output_cut) == (Outcome.PASSED, 1000, True)

    async def test_jobs_share_nothing(self, sandbox: Sandbox) -> None:
        source = "import os; print(os.path.exists('left')); open('left', 'w').write('x')"
        results = [await sandbox.run(Job(source=source, limits=LIMITS)) for _ in range(3)]
        assert [result.stdout for result in results] == ["False\n"] * 3

    async def test_jobs_see_the_names_of_their_library_as_it_was_at_first(self, sandbox: Sandbox) -> None:
        library = "import os\nCALLS = []\ndef called():\n    CALLS.append(os.getcwd())\n    return len(CALLS)\n"
        jobs = [Job(source="print(called(), called())", library=library, limits=LIMITS) for _ in range(3)]
        results = [await sandbox.run(job) for job in jobs]
        assert [result.stdout for result in results] == ["1 2\n"] * 3
        other = await sandbox.run(Job(source="print('called' in globals())", limits=LIMITS))
        assert other.stdout == "False\n"

    async def test_many_jobs_run_at_once(self, sandbox: Sandbox) -> None:
        results = await asyncio.gather(*(sandbox.run(Job(source=f"print({n})", limits=LIMITS)) for n in range(20)))
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(20)]

    async def test_text_that_is_not_utf8_does_not_break_the_sandbox(self, sandbox: Sandbox) -> None:
        result = await sandbox.run(Job(source="import os; os.write(1, bytes([255, 65]))", limits=LIMITS))
        assert result.outcome is Outcome.PASSED
        assert result.stdout.endswith("A")

    async def test_a_session_keeps_variables_files_and_folder(self, sandbox: Sandbox) -> None:
        if sandbox.level is Level.REMOTE:
            with pytest.raises(AstraFlowError):
                sandbox.session(LIMITS)
            return
        async with sandbox.session(LIMITS) as session:
            await session.shell("mkdir sub; cd sub; export NAME=value; echo text > file")
            assert (await session.shell("echo $NAME; cat file")).stdout == "value\ntext\n"
            await session.python("x = 41")
            assert (await session.python("x + 1")).stdout == "42\n"
            assert (await session.python("open('sub/file').read()")).stdout == "'text\\n'\n"
