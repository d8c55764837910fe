"""What the provider `static_ssh` has done on a host: one request about its machines in, one answer out.

Sent to the host with each call, beside the modules that it uses; standard library only, Python 3.11. Requests are JSON:
`{"do": "look" | "claim" | "start" | "withdraw" | "retire", ...}`; so are answers.
"""

import json
import time
from pathlib import Path
from typing import Any

from maintainer.fleet.providers.machine_folders import MachineFolders


def main(directory: str, request: dict[str, Any]) -> str:
    """The answer, in JSON."""
    folders = MachineFolders(Path(directory), grace_s=request["grace_s"], kept_s=request["kept_s"])
    try:
        return json.dumps(_answer(folders, request))
    except ValueError as problem:
        return json.dumps({"invalid": str(problem)})


def _answer(folders: MachineFolders, request: dict[str, Any]) -> dict[str, Any]:
    match request["do"]:
        case "look":
            return {"machines": list(folders.all())}
        case "claim":
            return _claim(folders, request)
        case "start":
            return _start(folders, request["launch_id"], token=request["token"])
        case "withdraw":
            with folders.locked():
                return {"is_withdrawn": folders.withdraw(request["launch_id"])}
        case "retire":
            return {"state": folders.retire(request["launch_id"])}
        case unknown:
            raise ValueError(f"nothing is called {unknown!r}")


def _claim(folders: MachineFolders, request: dict[str, Any]) -> dict[str, Any]:
    """A place for one machine more, if there is one; nothing is started. What is known already stays as it is.

    A claim that was never used has its place no longer, and is made anew.
    """
    launch_id, order = request["launch_id"], request["order"]
    with folders.locked():
        known = folders.seen(launch_id)
        if known is not None and (known["state"] != "gone" or not folders.withdraw(launch_id)):
            return {"is_claimed": True, "is_new": False, "fingerprint": known.get("fingerprint", "")}
        taken = sum(1 for machine in folders.all() if machine["state"] != "gone")
        if taken >= request["capacity"]:
            return {"is_claimed": False, "was_known": known is not None}
        order["argv"] += ["--preemption", folders.notice_option(launch_id)]
        folders.make(launch_id, {**order, "created_at": time.time()})
        return {"is_claimed": True, "is_new": True, "fingerprint": order["fingerprint"]}


def _start(folders: MachineFolders, launch_id: str, *, token: str) -> dict[str, Any]:
    """Whether it was started, now or before: not what was withdrawn in the meantime."""
    with folders.locked():
        is_there = bool(folders.order(launch_id))
        if is_there:
            folders.start(launch_id, token=token)
    return {"is_started": is_there}
