"""Starts a simulated server: `python -m tests.fakes.engine_server KIND FOLDER ARGUMENTS...`.

KIND: sglang or vllm. FOLDER: the environment, with `fake.json`, `faults.json` and `hold`. ARGUMENTS: those of the real
server.
"""

import json
import os
import socket
import sys
from pathlib import Path

from tests.fakes.engine_server import sglang, vllm
from tests.fakes.engine_server.core import Core, run_core
from tests.fakes.engine_server.frontend import Faults, run_frontend


def main() -> None:
    """Forks the core, then serves."""
    kind, folder, arguments = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    protocol = {"sglang": sglang, "vllm": vllm}[kind]
    options = protocol.parse(arguments)
    options.raw = arguments
    settings = json.loads((folder / "fake.json").read_text())
    faults = Faults(folder / "faults.json")
    if "exit" in faults.start and faults.start.get("with_argument", "--port") in arguments:
        print("RuntimeError: injected exit", flush=True)  # noqa: T201 (log of the server)
        sys.exit(faults.start["exit"])
    frontend_end, core_end = socket.socketpair()
    if os.fork() == 0:
        frontend_end.close()
        run_core(
            core_end,
            lambda: Core(
                Path(options.model),
                step_s=settings["step_s"],
                context_tokens=options.context_tokens,
                max_running=options.max_running,
                hold=folder / "hold",
            ),
        )
    core_end.close()
    run_frontend(frontend_end, lambda core: protocol.frontend(core, options, faults), faults, port=options.port)


if __name__ == "__main__":
    main()
