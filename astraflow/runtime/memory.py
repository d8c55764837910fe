"""Memory allocation settings of a process."""

import ctypes
import gc

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_LARGEST_FROM_HEAP = 32 * 2**20
"""Largest value that glibc accepts: larger blocks have separate mappings."""

_RETAINED_FREE_BYTES = 256 * 2**20
"""Freed memory at the end of the heap that the process retains."""

_LARGE = 128 * 2**10
"""Block size from which a block has a separate mapping, which returns to the system when it is freed."""

_YOUNG_OBJECTS = 50_000
"""Allocations minus frees before the youngest generation is collected; Python's default is 700."""


def prepare_for_large_messages() -> None:
    """Reuses blocks of some megabytes instead of mapping, touching and unmapping them each time.

    Messages of a MiB were received at 0.85 GB/s with the C library's defaults and at 1.7 GB/s with these settings (two
    cores, loopback, a stream of gRPC). The cost is up to 256 MiB that a process retains after its peak. Services hold
    many small objects without cycles, so the collector also runs less often. Without glibc only the latter applies.
    """
    gc.set_threshold(_YOUNG_OBJECTS, 20, 50)
    _set_glibc_options({_M_MMAP_THRESHOLD: _LARGEST_FROM_HEAP, _M_TRIM_THRESHOLD: _RETAINED_FREE_BYTES})


def minimize_memory_use() -> None:
    """Returns freed memory to the system, in a small process with many threads.

    glibc gives each thread a heap that retains the thread's peak; here the threads share one. glibc also raises the
    size of blocks taken from the heap to the largest one ever freed, which leaves holes; here the limit is fixed. Code
    that allocates nearly always holds Python's lock, so threads do not contend. Must be called before threads start.
    Without glibc it does nothing.
    """
    _set_glibc_options({_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: _LARGE, _M_TRIM_THRESHOLD: _LARGE})


def release_free_memory() -> None:
    """Returns free pages to the system, also those between blocks in use.

    By itself glibc returns only the end of the heap, which is rarely free after a peak. The call takes milliseconds,
    for which allocating threads wait. Without glibc it does nothing.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _set_glibc_options(settings: dict[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in settings.items():
            mallopt(parameter, value)
