"""A program that gets the arguments of a node and only sleeps, for tests of everything except nodes.

It ignores its arguments. SIGTERM ends it with code 0.
"""

import signal
import sys

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
while True:
    signal.pause()
