"""Memory allocation of a process through the C library."""

import subprocess
import sys
from pathlib import Path

import pytest

THREADS = """
import ctypes, sys, threading
from astraflow.runtime.memory import minimize_memory_use

if sys.argv[2] == "little":
    minimize_memory_use()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.fopen.restype = ctypes.c_void_p
barrier = threading.Barrier(4)

def work():
    barrier.wait()
    libc.malloc(1000)
    barrier.wait()

threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
file = ctypes.c_void_p(libc.fopen(sys.argv[1].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""

HOLES = """
import ctypes
from pathlib import Path
from astraflow.runtime.memory import release_free_memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.mallopt(-3, 32 * 2**20)

def resident_kib():
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("VmRSS"))

blocks = [libc.malloc(64 * 2**10) for _ in range(1000)]
for block in blocks:
    ctypes.memset(block, 1, 64 * 2**10)
for place, block in enumerate(blocks):
    if place % 10:
        libc.free(ctypes.c_void_p(block))
before = resident_kib()
release_free_memory()
print(before - resident_kib())
"""
"""Nine of ten blocks are free, and none is at the end of the heap."""


@pytest.mark.needs("glibc")
@pytest.mark.parametrize("kept", ["little", "usual"])
def test_threads_of_a_low_memory_process_share_one_heap(tmp_path: Path, kept: str) -> None:
    heaps_file = tmp_path / "heaps.xml"
    subprocess.run([sys.executable, "-c", THREADS, str(heaps_file), kept], check=True)
    assert (heaps_file.read_text().count("<heap nr=") == 1) == (kept == "little")


@pytest.mark.long
@pytest.mark.needs("glibc")
def test_freed_memory_between_used_blocks_is_returned() -> None:
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)

    assert int(done.stdout) > 40 * 1024
