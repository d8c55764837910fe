"""Host-side program of the provider `static_ssh`: handles one request about the host's machines.

Sent to the host with each call, together with the modules that it uses. Standard library only, Python 3.11.
Requests are JSON:
`{"do": "look" | "claim" | "start" | "withdraw" | "retire", ...}`; so are answers.
"""

import json
import time
from pathlib import Path
from typing import Any

from maintainer.fleet.providers.local_process.machine_folders import MachineFolders


def main(directory: str, request: dict[str, Any]) -> str:
    """Handles a request; returns the answer as JSON."""
    folders = MachineFolders(Path(directory), grace_s=request["grace_s"], retention_s=request["retention_s"])
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
            raise ValueError(f"cannot handle the request: unknown operation {unknown!r}")


def _claim(folders: MachineFolders, request: dict[str, Any]) -> dict[str, Any]:
    """Reserves a slot for a machine if one is free, without starting it. An existing claim stays as it is.

    An expired claim is made again.
    """
    launch_id, order = request["launch_id"], request["order"]
    with folders.locked():
        earlier_status = folders.status(launch_id)
        if earlier_status is not None and (earlier_status["state"] != "gone" or not folders.withdraw(launch_id)):
            return {"is_claimed": True, "is_new": False, "fingerprint": earlier_status.get("fingerprint", "")}
        used_slots = sum(1 for machine in folders.all() if machine["state"] != "gone")
        if used_slots >= request["capacity"]:
            return {"is_claimed": False, "was_known": earlier_status is not None}
        order["argv"] += ["--preemption", folders.notice_option(launch_id)]
        folders.make(launch_id, {**order, "created_at": time.time()})
        return {"is_claimed": True, "is_new": True, "fingerprint": order["fingerprint"]}


def _start(folders: MachineFolders, launch_id: str, *, token: str) -> dict[str, Any]:
    """Starts a claimed machine; reports whether it was started now or before, which a withdrawn claim was not."""
    with folders.locked():
        is_claimed = bool(folders.order(launch_id))
        if is_claimed:
            folders.start(launch_id, token=token)
    return {"is_started": is_claimed}
