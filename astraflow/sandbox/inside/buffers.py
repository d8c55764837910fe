"""Memory for texts of jobs in the fork server."""

import mmap


class Buffer:
    """Memory that forks of this process do not get. What jobs print and consist of passes through it."""

    def __init__(self, size: int) -> None:
        self.view = memoryview(b"")
        self.hold(size)

    def hold(self, size: int) -> None:
        """Makes place for so many bytes, and forgets the content where there was less."""
        if size > len(self.view):
            mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            mapping.madvise(mmap.MADV_DONTFORK)
            self.view = memoryview(mapping)
