"""Pickles that SGLang gets, read without torch."""

import base64
import io
import math
import pickle
from typing import Any

from tests.fakes.engine_server.frontend import HttpError


def tensor_bits(encoded: str) -> dict[str, bytes]:
    """Returns the bits of pickled float32 tensors by name. Raises: HttpError."""
    tensors: dict[str, bytes] = _BitsOfTensors(io.BytesIO(base64.b64decode(encoded))).load()
    return tensors


class _BitsOfTensors(pickle.Unpickler):
    """Reads tensors as their bits: a storage is pickled as a file that ends with them."""

    def find_class(self, module: str, name: str) -> Any:
        """Returns replacements for functions of torch. Raises: HttpError for others, as SGLang's allow-list does."""
        known = {
            ("torch.storage", "_load_from_bytes"): bytes,
            ("torch._utils", "_rebuild_tensor_v2"): lambda storage, _, size, *__: storage[-4 * math.prod(size) :],
            ("collections", "OrderedDict"): dict,
        }
        if (module, name) not in known:
            raise _refusal(f"{module}.{name} is not allowed")
        return known[module, name]


def _refusal(message: str) -> HttpError:
    return HttpError(400, {"success": False, "message": message})
