"""Plain TCP over the same link: the available rate, without AstraFlow.

python -m benchmarks.wide_area.plain_tcp serve HOST PORT
python -m benchmarks.wide_area.plain_tcp fetch HOST PORT CONNECTIONS ROUNDS MEGABYTES...   a JSON line a round
"""

import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Sequence

PIECE = bytes(2**20)
_SIZE = struct.Struct("<Q")


def serve(host: str, port: int) -> None:
    """Answers every number with that many bytes, until killed."""
    with socket.create_server((host, port)) as server:
        sys.stdout.write("serving\n")
        sys.stdout.flush()
        while True:
            connection, _ = server.accept()
            threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def fetch(host: str, port: int, *, connections: int, rounds: int, sizes_mb: Sequence[int]) -> None:
    """Fetches each size this often, over the same connections; prints seconds from the request to the last byte."""
    sockets = [socket.create_connection((host, port)) for _ in range(connections)]
    for size_mb in sizes_mb:
        for _ in range(rounds):
            share_bytes = size_mb * 10**6 // connections
            fetch_s = _round(sockets, share_bytes)
            line = json.dumps({"size_bytes": share_bytes * connections, "all_s": fetch_s, "fetch_s": fetch_s})
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


def _answer(connection: socket.socket) -> None:
    with connection:
        while wanted := connection.recv(_SIZE.size, socket.MSG_WAITALL):
            (left,) = _SIZE.unpack(wanted)
            while left:
                left -= connection.send(memoryview(PIECE)[: min(left, len(PIECE))])


def _round(sockets: Sequence[socket.socket], share_bytes: int) -> float:
    began = time.perf_counter()
    threads = [threading.Thread(target=_receive, args=(socket_, share_bytes)) for socket_ in sockets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - began


def _receive(connection: socket.socket, size_bytes: int) -> None:
    connection.sendall(_SIZE.pack(size_bytes))
    buffer = bytearray(2**20)
    while size_bytes:
        size_bytes -= connection.recv_into(buffer, min(size_bytes, len(buffer)))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    connections, rounds, *sizes_mb = (int(value) for value in sys.argv[4:])
    fetch(sys.argv[2], int(sys.argv[3]), connections=connections, rounds=rounds, sizes_mb=sizes_mb)
