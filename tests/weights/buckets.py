"""Local S3 service for tests: moto in a separate process on loopback."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

STARTING_S = 60.0


@contextmanager
def bucket_service() -> Iterator[str]:
    """Starts the service and yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait_for(f"http://127.0.0.1:{port}/moto-api/", process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def make_bucket(service: str, bucket: str) -> None:
    """Creates an empty bucket."""
    request = urllib.request.Request(f"{service}/{bucket}", method="PUT")  # noqa: S310 (loopback)
    request.add_header("Authorization", "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request")
    with urllib.request.urlopen(request, timeout=10):  # noqa: S310
        pass


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + STARTING_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=1):  # noqa: S310 (loopback)
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError("moto did not start")
