"""Worker process of a `WorkerPool`: reads one JSON call per line from standard input, writes one JSON reply per line.

The first line that it writes reports that its function is imported. The process ends when its standard input is closed.
If no parent is left to kill a call that exceeds its limit, a timer of the kernel ends the process.
"""

import json
import os
import resource
import signal
import sys
from importlib import import_module
from typing import BinaryIO

GRACE_S = 2.0
"""Time that the pool has to kill a worker before the timer does. Seconds."""


def main() -> None:
    """Serves the function `module:name` of the first argument; the others are the limits in seconds and in bytes."""
    function, limit_s, memory_bytes = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is not a reply
    module, _, name = function.partition(":")
    call = getattr(import_module(module), name)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    _reply(replies, {"ready": True})
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_REAL, limit_s + GRACE_S)  # without a handler, its signal ends the process
        try:
            reply = {"result": call(json.loads(line))}
        except Exception as problem:  # any library, any text: the pool raises it again
            reply = {"error": f"{type(problem).__name__}: {problem}"[:500]}
        signal.setitimer(signal.ITIMER_REAL, 0)
        _reply(replies, reply)


def _reply(replies: BinaryIO, message: object) -> None:
    replies.write(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
