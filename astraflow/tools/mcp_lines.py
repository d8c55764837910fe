"""Relay between an MCP server and its client that ends the server after a line that is too long.

Run as source: standard library only. Arguments: limit in bytes, then the command of the server.
"""

import subprocess
import sys


def main() -> int:
    """Runs a server with the standard input of this process, and passes its lines on."""
    limit = int(sys.argv[1])
    with subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE) as server:  # noqa: S603 (the command of the options)
        assert server.stdout is not None  # noqa: S101 (a pipe)
        while line := server.stdout.readline(limit + 1):
            if len(line) > limit:
                sys.stderr.write(f"the MCP server sent a line of more than {limit} bytes\n")
                server.kill()
                return 1
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        return server.wait()


if __name__ == "__main__":
    sys.exit(main())
