"""How this process takes memory from the system and gives it back."""

import ctypes
import gc

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8

_LARGEST_FROM_HEAP = 32 * 2**20
"""glibc accepts no more: larger blocks have a mapping of their own."""

_KEPT_FREE = 256 * 2**20
"""Freed memory at the end of the heap that stays with the process."""

_LARGE = 128 * 2**10
"""Blocks from here on have a mapping of their own, which goes back to the system when they are freed."""

_YOUNG_OBJECTS = 50_000
"""Allocations less frees before the youngest are looked at for cycles; Python's own default is 700."""


def prepare_for_large_messages() -> None:
    """Let blocks of some megabytes be reused instead of mapped, touched page by page and unmapped each time.

    Messages of a MiB came in at 0.85 GB/s with the C library's defaults and at 1.7 GB/s with these (two cores,
    loopback, a stream of gRPC). The price is up to 256 MiB that a process keeps after its largest moment.
    Services hold many small objects that form no cycles, so the collector looks for them less often, too.
    Without glibc only the latter is done.
    """
    gc.set_threshold(_YOUNG_OBJECTS, 20, 50)
    _tell_glibc({_M_MMAP_THRESHOLD: _LARGEST_FROM_HEAP, _M_TRIM_THRESHOLD: _KEPT_FREE})


def keep_little() -> None:
    """Have what was freed go back to the system, in a process that is small and has many threads.

    glibc gives threads heaps of their own, each of which keeps what its thread once needed; here they share one. It
    also takes blocks from the heap that are as large as any that was ever freed, between which holes remain; here the
    limit stays where it is. What takes and frees memory holds Python's lock nearly always, so threads do not wait.
    To be called before threads begin. Without glibc nothing is done.
    """
    _tell_glibc({_M_ARENA_MAX: 1, _M_MMAP_THRESHOLD: _LARGE, _M_TRIM_THRESHOLD: _LARGE})


def give_back() -> None:
    """Have the system take back pages that are free, those between blocks in use too.

    glibc by itself only returns the end of the heap, which after a large moment is rarely free. It takes milliseconds,
    for which other threads wait that allocate. Without glibc nothing is done.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _tell_glibc(settings: dict[int, int]) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for parameter, value in settings.items():
            mallopt(parameter, value)
