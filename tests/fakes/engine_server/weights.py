"""Weights of a simulated engine: safetensors files and patch files, read without numpy."""

import json
from collections.abc import Mapping
from pathlib import Path

from tests.fakes.engine_server.token_model import DUMMY, adapted, identity

_SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "I32": 4}


class CannotLoad(ValueError):
    """The file does not fit the served weights."""


class Weights:
    """Served tensors as bits, by name."""

    def __init__(self) -> None:
        self._tensors: dict[str, bytearray] = {}
        self._widths: dict[str, int] = {}
        self._adapters: dict[str, bytes] = {}
        """Identities of the loaded adapters by name."""
        self.identity = DUMMY

    def load(self, path: Path) -> None:
        """Replaces all tensors."""
        tensors = read_tensors(path)
        if not tensors:
            raise CannotLoad(f"no tensors in {path}")
        self._tensors = {name: bytearray(bits) for name, (_, bits) in tensors.items()}
        self._widths = {name: _SIZES[dtype] for name, (dtype, _) in tensors.items()}
        self._identify()

    def patch(self, path: Path) -> int:
        """Writes changed elements; returns their number."""
        if not self._tensors:
            raise CannotLoad("cannot patch: no weight mapping is known; load a whole version first")
        changes = read_tensors(path)
        elements = 0
        for name in (name.removesuffix(".positions") for name in changes if name.endswith(".positions")):
            if name not in self._tensors:
                raise CannotLoad(f"cannot patch tensor {name!r}")
            tensor, width = self._tensors[name], self._widths[name]
            positions, values = changes[f"{name}.positions"][1], changes[f"{name}.values"][1]
            for index in range(len(positions) // 8):
                position = int.from_bytes(positions[8 * index : 8 * index + 8], "little") * width
                if position + width > len(tensor):
                    raise CannotLoad(f"cannot patch tensor {name!r}: a position is outside of it")
                tensor[position : position + width] = values[width * index : width * index + width]
                elements += 1
        self._identify()
        return elements

    def identity_with(self, adapter: str) -> bytes:
        """Returns the identity with a loaded adapter, or without one for an empty name. Raises: CannotLoad."""
        if not adapter:
            return self.identity
        if adapter not in self._adapters:
            raise CannotLoad(f"no adapter {adapter!r} is loaded")
        return adapted(self.identity, self._adapters[adapter])

    def add_adapter(self, name: str, tensors: Mapping[str, bytes]) -> None:
        """Loads an adapter beside the others. Raises: CannotLoad when the name is taken."""
        if name in self._adapters:
            raise CannotLoad(f"the adapter {name!r} is already loaded")
        self._adapters[name] = identity(tensors)

    def remove_adapter(self, name: str) -> None:
        """Unloads an adapter. Raises: CannotLoad."""
        if self._adapters.pop(name, None) is None:
            raise CannotLoad(f"no adapter {name!r} is loaded")

    def checksums(self) -> dict[str, str]:
        """Returns a checksum per tensor."""
        return {name: identity({name: bytes(bits)}).hex() for name, bits in sorted(self._tensors.items())}

    def _identify(self) -> None:
        self.identity = identity({name: bytes(bits) for name, bits in self._tensors.items()})


def read_tensors(path: Path) -> dict[str, tuple[str, bytes]]:
    """Returns type and bits of each tensor of a safetensors file."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    begin = 8 + length
    return {
        name: (entry["dtype"], content[begin + entry["data_offsets"][0] : begin + entry["data_offsets"][1]])
        for name, entry in header.items()
    }
