"""A long link on one machine: two network namespaces, and a process that carries packets between them, late.

The kernel's own emulator (netem) is not in every kernel, and needs a module; a TUN device needs neither. Each namespace
has one; this module reads packets from one and writes them to the other when they are due: after their turn on a wire
of `bits_per_s`, `delay_s` and `jitter_s`. Packets are lost at random, where the queue before the wire is full, and in
outages. Order is kept.

    near 10.78.0.1 ─tun─► queue, wire, delay ─tun─► far 10.78.0.2     and the same the other way

Segmentation is left to the device (`TUNSETOFFLOAD`), as a network card would do: TCP counts in segments of `mtu_bytes`,
and slow start begins as it does on the real link, but up to 64 KiB of them are carried at once. So a loss takes a burst
of segments, as a full queue does; a loss of single packets is not shown. One core carries 4 Gbit/s.

As a program it forwards packets until its input ends; a line `down SECONDS` on its input causes an outage.

    python -m benchmarks.wide_area.link NEAR FAR JSON
"""

import fcntl
import json
import os
import random
import select
import shutil
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

NEAR_ADDRESS, FAR_ADDRESS = "10.78.0.1", "10.78.0.2"
DEVICE = Path("/dev/net/tun")

_TUNSETIFF, _TUNSETOFFLOAD, _TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x1, 0x1000, 0x4000
_CHECKSUMS_AND_TCP4 = 0x1 | 0x2
_VNET = struct.Struct("<BBHHHH")
"""flags, kind of segmentation, bytes of headers, bytes of a segment, and where the checksum is."""
_READ_BYTES = 2**16 + 256
_AT_ONCE = 64
"""Packets read from one side before the other side is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSpec:
    """Properties of the link, the same in both directions."""

    bits_per_s: float = 4e9
    delay_s: float = 0.15
    """Seconds in one direction: half of the round trip."""
    jitter_s: float = 0.0
    """Added to the delay, uniform from 0 to this."""
    loss: float = 0.0
    """Share of bursts, of up to 64 KiB, that are lost."""
    queue_s: float = 0.3
    """Packets that would wait longer are dropped: a buffer of one round trip."""
    mtu_bytes: int = 1500
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCounts:
    """Counts of the link, both directions together."""

    packets: int
    size_bytes: int
    lost: int
    """Packets lost at random."""
    overflowed: int
    in_outages: int
    late_s: float
    """Largest lateness of the carrier itself: above some milliseconds, the machine was too slow for the link."""
    busy: float
    """Share of its time that the carrier was busy."""


class Direction:
    """One direction: accepts packets, and returns them when they are due."""

    def __init__(self, spec: LinkSpec, seed: int) -> None:
        self._spec = spec
        self._random = random.Random(seed)
        self._wire_free_at = 0.0
        self._last_due = 0.0
        self._under_way: deque[tuple[float, bytes]] = deque()
        self.packets = self.size_bytes = self.lost = self.overflowed = 0

    def take(self, packet: bytes, size_bytes: int, now: float) -> None:
        """Accepts a packet of this length on the wire."""
        spec = self._spec
        wait_s = self._wire_free_at - now
        if wait_s > spec.queue_s:
            self.overflowed += 1
            return
        self._wire_free_at = max(self._wire_free_at, now) + 8 * size_bytes / spec.bits_per_s
        if spec.loss and self._random.random() < spec.loss:
            self.lost += 1
            return
        jitter_s = self._random.uniform(0.0, spec.jitter_s) if spec.jitter_s else 0.0
        self._last_due = max(self._last_due, self._wire_free_at + spec.delay_s + jitter_s)
        self._under_way.append((self._last_due, packet))
        self.packets += 1
        self.size_bytes += size_bytes

    def due(self, now: float) -> bytes | None:
        """Returns the next packet if it is due."""
        if self._under_way and self._under_way[0][0] <= now:
            return self._under_way.popleft()[1]
        return None

    @property
    def next_due(self) -> float:
        """Returns when the next packet is due; infinity when none is queued."""
        return self._under_way[0][0] if self._under_way else float("inf")


class PacketCarrier:
    """Loop between two TUN devices."""

    def __init__(self, near: int, far: int, spec: LinkSpec) -> None:
        """near, far: descriptors of the devices, not blocking."""
        self._ways = {
            near: (far, Direction(spec, spec.seed)),
            far: (near, Direction(spec, spec.seed + 1)),
        }
        self._down_until = 0.0
        self._in_outages = 0
        self._late_s = 0.0
        self._busy_s = 0.0
        self._began = time.monotonic()

    def run(self, orders: int) -> LinkCounts:
        """Runs until the descriptor `orders` ends."""
        poll = select.epoll()
        for descriptor in (*self._ways, orders):
            poll.register(descriptor, select.EPOLLIN)
        while True:
            events = [descriptor for descriptor, _ in poll.poll(self._until_due())]
            began = time.monotonic()
            if orders in events and not self._obey(os.read(orders, 4096)):
                return self._counts()
            for descriptor in events:
                if descriptor != orders:
                    self._read(descriptor)
            self._write()
            self._busy_s += time.monotonic() - began

    def _until_due(self) -> float | None:
        next_due = min(way.next_due for _, way in self._ways.values())
        return None if next_due == float("inf") else max(0.0, next_due - time.monotonic())

    def _obey(self, order: bytes) -> bool:
        for line in order.decode().splitlines():
            self._down_until = time.monotonic() + float(line.removeprefix("down "))
        return bool(order)

    def _read(self, descriptor: int) -> None:
        _, way = self._ways[descriptor]
        for _ in range(_AT_ONCE):
            try:
                packet = os.read(descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            now = time.monotonic()
            if now < self._down_until:
                self._in_outages += 1
            else:
                way.take(packet, _bytes_on_the_wire(packet), now)

    def _write(self) -> None:
        for to, way in self._ways.values():
            now = time.monotonic()
            if now - way.next_due > self._late_s:
                self._late_s = now - way.next_due
            for _ in range(_AT_ONCE):
                if (packet := way.due(now)) is None:
                    break
                os.write(to, packet)

    def _counts(self) -> LinkCounts:
        ways = [way for _, way in self._ways.values()]
        return LinkCounts(
            packets=sum(way.packets for way in ways),
            size_bytes=sum(way.size_bytes for way in ways),
            lost=sum(way.lost for way in ways),
            overflowed=sum(way.overflowed for way in ways),
            in_outages=self._in_outages,
            late_s=self._late_s,
            busy=self._busy_s / (time.monotonic() - self._began),
        )


class RunningLink:
    """A running link between the namespaces `near` and `far`."""

    def __init__(self, near: str, far: str, carrier: "subprocess.Popen[str]") -> None:
        self.near, self.far = near, far
        self._carrier = carrier

    def in_near(self, *command: str) -> list[str]:
        """Returns the command line that runs `command` at the near end."""
        return ["ip", "netns", "exec", self.near, *command]

    def in_far(self, *command: str) -> list[str]:
        """Returns the command line that runs `command` at the far end."""
        return ["ip", "netns", "exec", self.far, *command]

    def go_down(self, seconds: float) -> None:
        """Drops all packets for this time from now on."""
        assert self._carrier.stdin is not None
        self._carrier.stdin.write(f"down {seconds}\n")
        self._carrier.stdin.flush()

    def end(self) -> LinkCounts:
        """Stops the link; returns its counts."""
        out, problem = self._carrier.communicate(timeout=10)
        if self._carrier.returncode:
            raise RuntimeError(f"the link broke: {problem}")
        return LinkCounts(**json.loads(out.splitlines()[-1]))


TCP = {
    "net.ipv4.tcp_rmem": "4096 1048576 536870912",
    "net.ipv4.tcp_wmem": "4096 1048576 536870912",
    "net.ipv4.tcp_slow_start_after_idle": "0",
}
"""Settings for both ends of a long link: a window as large as the data in flight (150 MB), kept between versions."""
UNTUNED = {"net.ipv4.tcp_rmem": "4096 131072 6291456", "net.ipv4.tcp_wmem": "4096 16384 4194304"}
"""Defaults of the kernel, as on most machines: at most 4 MB in flight."""


def reason_against() -> str | None:
    """Returns the reason why this machine cannot make a link; None when it can."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if not DEVICE.exists():
        return f"{DEVICE} is not there"
    if shutil.which("ip") is None:
        return "the program ip is missing: install iproute2"
    if subprocess.run(["ip", "netns", "list"], capture_output=True, check=False).returncode:
        return "this kernel or this container has no network namespaces"
    return None


@contextmanager
def running(spec: LinkSpec, *, settings: dict[str, str] | None = None) -> Iterator[RunningLink]:
    """Runs a link until the block ends, then removes it. settings: sysctls of both ends, besides `TCP`."""
    near, far = f"astraflow-near-{os.getpid()}", f"astraflow-far-{os.getpid()}"
    with ExitStack() as stack:
        for name in (near, far):
            _run("ip", "netns", "add", name)
            stack.callback(_run, "ip", "netns", "del", name)
        carrier = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, near, far, json.dumps(asdict(spec))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        stack.enter_context(carrier)
        stack.callback(carrier.terminate)
        assert carrier.stdout is not None
        if carrier.stdout.readline() != "carrying\n":
            raise RuntimeError(f"the link did not come up: {carrier.communicate(timeout=10)[1]}")
        for name in (near, far):
            _run("ip", "-n", name, "link", "set", "lo", "up")
            for key, value in {**TCP, **(settings or {})}.items():
                _run("ip", "netns", "exec", name, "sysctl", "-q", "-w", f"{key}={value}")
        yield RunningLink(near, far, carrier)


def main(arguments: Sequence[str]) -> None:
    """Creates the devices, moves them into the namespaces, and forwards packets."""
    near, far, spec = arguments[0], arguments[1], LinkSpec(**json.loads(arguments[2]))
    descriptors = []
    for name, address, peer in ((near, NEAR_ADDRESS, FAR_ADDRESS), (far, FAR_ADDRESS, NEAR_ADDRESS)):
        device = f"af{os.getpid() % 10**8}{'n' if name == near else 'f'}"
        descriptors.append(_device(device))
        _run("ip", "link", "set", device, "netns", name)
        _run("ip", "-n", name, "address", "add", address, "peer", peer, "dev", device)
        _run("ip", "-n", name, "link", "set", device, "mtu", str(spec.mtu_bytes), "txqueuelen", "10000", "up")
    sys.stdout.write("carrying\n")
    sys.stdout.flush()
    counts = PacketCarrier(descriptors[0], descriptors[1], spec).run(sys.stdin.fileno())
    sys.stdout.write(json.dumps(asdict(counts)) + "\n")


def _device(name: str) -> int:
    descriptor = os.open(DEVICE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR))
    fcntl.ioctl(descriptor, _TUNSETVNETHDRSZ, struct.pack("i", _VNET.size))
    fcntl.ioctl(descriptor, _TUNSETOFFLOAD, _CHECKSUMS_AND_TCP4)
    return descriptor


def _bytes_on_the_wire(packet: bytes) -> int:
    """Returns the bytes of the packet's segments, each with headers."""
    _, kind, header_bytes, segment_bytes, _, _ = _VNET.unpack_from(packet)
    size_bytes = len(packet) - _VNET.size
    if kind == 0:
        return size_bytes
    segments = -(-(size_bytes - header_bytes) // segment_bytes)
    return int(size_bytes + (segments - 1) * header_bytes)


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


if __name__ == "__main__":
    main(sys.argv[1:])
