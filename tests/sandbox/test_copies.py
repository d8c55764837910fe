"""What an earlier program printed, read, consisted of or wrote is not in memory of a later program of its worker."""

import secrets
from collections.abc import AsyncIterator

import pytest

from astraflow.sandbox.base import Job, JobLimits, Outcome
from astraflow.sandbox.local import LocalSandbox
from astraflow.sandbox.options import LocalSandboxOptions

pytestmark = pytest.mark.anyio

LIMITS = JobLimits(wall_s=30.0, cpu_s=20.0, memory_bytes=512 * 2**20, output_bytes=2**21)
SIZES = (16, 200, 1_379, 20_667, 2**20)
"""Bytes of the marked texts: small objects, allocations of the C library, and mappings of their own."""

SEARCH = """
import ctypes, os
libc = ctypes.CDLL(None)
def areas():
    # The writable areas, without /proc those around addresses of the heap, of objects and of the C library.
    try:
        lines = open("/proc/self/maps").read().splitlines()
    except OSError:
        libc.sbrk.restype = ctypes.c_void_p
        anchors = [libc.sbrk(0), id(areas), id(os), id(object()), ctypes.cast(libc.write, ctypes.c_void_p).value]
        return [((anchor - 2**25) & -4096, (anchor + 2**25) & -4096) for anchor in anchors]
    edges = [line.split()[0].split("-") for line in lines if " rw" in line]
    return [(int(begin, 16), int(end, 16)) for begin, end in edges]
def chunks(begin, end):
    # What can be read of an area, through a pipe: the kernel refuses what is not mapped.
    reader, writer = os.pipe()
    while begin < end:
        count = libc.write(writer, ctypes.c_void_p(begin), ctypes.c_size_t(min(65536, end - begin)))
        if count > 0:
            yield os.read(reader, count)
        begin += count if count > 0 else 4096
    os.close(reader), os.close(writer)
def is_found():
    for begin, end in areas():
        before = b""
        for chunk in chunks(begin, end):
            content = before + chunk
            place = content.find(HEAD)
            while place >= 0:
                if content[place + 8 : place + 8 + len(TAIL)] == TAIL:
                    return True
                place = content.find(HEAD, place + 1)
            before = content[-15:]
    return False
print(is_found())
"""
"""Prints whether the process has the 8 bytes of HEAD before the 8 of TAIL anywhere in its memory."""


@pytest.fixture(params=["namespaces", "restricted", "none"], scope="module")
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[LocalSandbox]:
    """One worker of each level."""
    options = {"level": request.param, "allow_weak": True, "workers": 1}
    sandbox = LocalSandbox(LocalSandboxOptions.model_validate(options))
    await sandbox.start()
    yield sandbox
    await sandbox.close()


async def has_copy(sandbox: LocalSandbox, mark: str, *, library: str = "") -> bool:
    source = f"HEAD, TAIL = {mark[:8].encode()!r}, {mark[8:].encode()!r}\n{SEARCH}"
    result = await sandbox.run(Job(source=source, library=library, limits=LIMITS))
    assert result.stdout in ("True\n", "False\n"), result
    return result.stdout == "True\n"


def marked_jobs(text: str) -> list[Job]:
    """Returns jobs that have the text as their output, input, source, file, name of a file, error or last words."""
    held = f"text = {text!r}\n"
    return [
        Job(source=f"{held}print(text, end='')", limits=LIMITS),
        Job(source="import sys\nprint(sys.stdin.read(), end='', file=sys.stderr)", stdin=text, limits=LIMITS),
        Job(source="print(open('f').read(), end='')", files={"f": text}, limits=LIMITS),
        Job(source=f"{held}open('f', 'w').write(text)\nopen(text[:200], 'w')\nraise ValueError(text)", limits=LIMITS),
        Job(
            source=f"{held}import os\nfor _ in range(9): print(text, flush=True)\nos.kill(os.getpid(), 9)",
            limits=LIMITS,
        ),
    ]


@pytest.mark.parametrize("size", SIZES)
async def test_no_text_of_an_earlier_program_is_in_memory_of_a_later_one(sandbox: LocalSandbox, size: int) -> None:
    mark = secrets.token_hex(8)
    text = (mark * (size // 16 + 1))[:size]
    results = [await sandbox.run(job) for job in marked_jobs(text)]
    assert [(len(results[0].stdout), len(results[1].stderr), len(results[2].stdout))] == [(size, size, size)]
    assert [result.outcome for result in results[3:]] == [Outcome.FAILED, Outcome.CRASHED]
    assert not await has_copy(sandbox, mark)


async def test_the_names_of_long_programs_are_not_in_memory_of_a_later_one(sandbox: LocalSandbox) -> None:
    mark = secrets.token_hex(8)
    source = f"import ctypes, time\nctypes.CDLL(None).prctl(15, {mark[:15]!r}.encode(), 0, 0, 0)\ntime.sleep(0.6)"
    assert (await sandbox.run(Job(source=source, limits=LIMITS))).outcome is Outcome.PASSED
    assert not await has_copy(sandbox, mark[:15])


async def test_the_search_finds_what_the_worker_holds(sandbox: LocalSandbox) -> None:
    for size in SIZES:
        mark = secrets.token_hex(8)
        library = f"TEXT = {mark[:8]!r} + {mark[8:]!r} * {size // 16 + 1}"
        assert await has_copy(sandbox, mark, library=library), size
