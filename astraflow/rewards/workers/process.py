"""Worker process of a `WorkerPool`: reads one JSON call per line from standard input, writes one JSON reply per line.

The first line that it writes reports that its function is imported. The process ends when its standard input is closed.
A timer of the kernel ends it when a call uses up its processor time, another one when a call stalls and no parent is
left to kill it. Neither has a handler, so nothing that the call does prevents it.
"""

import json
import os
import resource
import signal
import sys
from importlib import import_module
from typing import BinaryIO

GRACE_S = 2.0
"""Time that the pool has to kill a stalled worker before the timer does. Seconds."""


def main() -> None:
    """Serves the function `module:name` of the first argument.

    The other arguments limit a call: processor time and wall time in seconds, memory in bytes.
    """
    function, limit_s, stall_s, memory_bytes = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is not a reply
    module, _, name = function.partition(":")
    call = getattr(import_module(module), name)
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    _reply(replies, {"ready": True})
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, limit_s)
        signal.setitimer(signal.ITIMER_REAL, stall_s + GRACE_S)
        try:
            reply = {"result": call(json.loads(line))}
        except Exception as problem:  # any library, any text: the pool raises it again
            reply = {"error": f"{type(problem).__name__}: {problem}"[:500]}
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _reply(replies, reply)


def _reply(replies: BinaryIO, message: object) -> None:
    replies.write(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    main()
