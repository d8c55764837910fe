"""Fake of a SandboxFusion service: its protocol, with programs run by a plain child process of the test."""

import asyncio
import base64
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException


class FakeSandboxFusion:
    """Service with one endpoint. `failures`: how the next requests fail, in order."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.app = FastAPI()
        self.app.post("/run_code")(self.run_code)

    async def run_code(self, request: dict[str, Any]) -> Any:
        """Runs the program of a request."""
        self.requests.append(request)
        failure = self.failures.pop(0) if self.failures else ""
        if failure == "status":
            raise HTTPException(503, "overloaded")
        if failure == "sandbox":
            return {"status": "SandboxError", "message": "no container", "run_result": None, "files": {}}
        if failure == "form":
            return ["unexpected"]
        with tempfile.TemporaryDirectory() as folder:
            for path, content in request["files"].items():
                target = Path(folder, path)
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(base64.b64decode(content))
            result = await _run(request, folder)
        is_success = result["status"] == "Finished" and result["return_code"] == 0
        return {"status": "Success" if is_success else "Failed", "message": "", "run_result": result, "files": {}}


async def _run(request: dict[str, Any], folder: str) -> dict[str, Any]:
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({request['memory_limit_MB'] * 2**20},) * 2)"
    Path(folder, "main.py").write_text(request["code"])
    code = f"{limit}\nimport runpy; runpy.run_path('main.py', run_name='__main__')"
    started_at = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdin=-1, stdout=-1, stderr=-1, cwd=folder
    )  # fmt: skip
    try:
        async with asyncio.timeout(request["run_timeout"]):
            stdout, stderr = await process.communicate(request["stdin"].encode())
    except TimeoutError:
        process.kill()
        await process.communicate()
        return {"status": "TimeLimitExceeded", "execution_time": 0, "return_code": None, "stdout": "", "stderr": ""}
    return {
        "status": "Finished",
        "execution_time": time.monotonic() - started_at,
        "return_code": process.returncode,
        "stdout": stdout.decode(errors="replace"),
        "stderr": stderr.decode(errors="replace"),
    }
