"""Training data of a request: protobuf that is checked once, and becomes arrays.

The SDK sends `forward_backward` as protobuf only. Every datum has input tokens and, for each of them, one target or
several, with inputs of the loss in the same shape.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from astraflow.contract.errors import InvalidInput
from astraflow.tinker.losses import TokenLoss, find_loss
from astraflow.wire.pb import tinker_pb2 as pb

Float32Array: TypeAlias = npt.NDArray[np.float32]
Int64Array: TypeAlias = npt.NDArray[np.int64]

MAX_TARGETS = 32
"""Targets of one token."""
_TARGETS, _WEIGHTS = "target_tokens", "weights"
_ELEMENTS: Mapping[int, np.dtype[Any]] = {
    pb.DTYPE_FLOAT32: np.dtype("<f4"),
    pb.DTYPE_INT64: np.dtype("<i8"),
    pb.DTYPE_INT32: np.dtype("<i4"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    """One sequence to train on. All arrays but `tokens` have the shape of `targets`."""

    tokens: Int64Array
    """`[n]`"""
    targets: Int64Array
    """`[n, k]`: tokens whose logprobs are computed after each input token; -1: none."""
    is_flat: bool
    """True if the client sent targets of shape `[n]`."""
    inputs: Mapping[str, Float32Array]
    """Inputs of the loss, `[n, k]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingData:
    """Checked content of a request."""

    data: tuple[Datum, ...]
    loss: TokenLoss
    settings: Mapping[str, float]
    is_forward_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DataLimits:
    """Limits of the model."""

    vocabulary: int
    context: int
    """Tokens of the longest sequence."""


def parse_request(body: bytes) -> pb.ForwardBackwardRequest:
    """Returns the message. Raises: InvalidInput."""
    try:
        return pb.ForwardBackwardRequest.FromString(body)
    except DecodeError:
        raise InvalidInput(
            "cannot read the request: its body is no ForwardBackwardRequest; send what the SDK 0.38 sends",
            code="tinker.not_protobuf",
        ) from None


def training_data(message: pb.ForwardBackwardRequest, limits: DataLimits) -> TrainingData:
    """Checks a request against the limits of its model. Raises: InvalidInput naming the field."""
    loss = find_loss(message.loss_fn)
    if not message.data:
        raise _invalid("data", "it is empty")
    return TrainingData(
        data=tuple(_datum(datum, f"data[{number}]", loss, limits) for number, datum in enumerate(message.data)),
        loss=loss,
        settings=_settings(message, loss),
        is_forward_only=message.forward_only,
    )


def passes(data: Sequence[Datum], *, tokens: int) -> Iterator[list[Datum]]:
    """Returns the sequences of each forward pass, in order: as many as fit into `tokens`, padding included."""
    batch: list[Datum] = []
    longest = 0
    for datum in data:
        longest = max(longest, len(datum.tokens))
        if batch and (len(batch) + 1) * longest > tokens:
            yield batch
            batch, longest = [], len(datum.tokens)
        batch.append(datum)
    yield batch


def encode_output(logprobs: Sequence[Float32Array], metrics: Mapping[str, float]) -> bytes:
    """Returns a ForwardBackwardOutput with the logprobs of each datum, `[n]` or `[n, k]`."""
    output = pb.ForwardBackwardOutput(loss_fn_output_type="ArrayRecord", metrics=dict(metrics))
    for trailing, adjacent in groupby(logprobs, key=lambda array: array.shape[1:]):
        group = list(adjacent)
        sizes = np.cumsum([0, *(array.nbytes for array in group)]).astype("<i8")
        batched = pb.BatchedTensor(
            data=b"".join(array.astype("<f4").tobytes() for array in group),
            offsets=sizes.tobytes(),
            dtype=pb.DTYPE_FLOAT32,
            trailing_shape=trailing,
        )
        output.loss_fn_outputs.append(pb.ArrayRecord(fields={"logprobs": batched}, num_datums=len(group)))
    return output.SerializeToString()


def _settings(message: pb.ForwardBackwardRequest, loss: TokenLoss) -> Mapping[str, float]:
    sent: dict[str, float] = dict(message.loss_fn_config)
    for name, value in message.loss_fn_config_v2.items():
        if value.WhichOneof("value") == "text":
            raise _invalid(f"loss_fn_config.{name[:80]}", "this server reads numbers only")
        sent[name] = value.number
    for name, number in sent.items():
        if name not in loss.settings:
            raise _invalid(f"loss_fn_config.{name[:80]}", f"loss_fn {message.loss_fn!r} does not read it here")
        if not (math.isfinite(number) and number >= 0):
            raise _invalid(f"loss_fn_config.{name}", f"{number} is not a number from 0 up")
    settings = {**loss.settings, **sent}
    if settings.get("clip_low_threshold", 0.0) > settings.get("clip_high_threshold", math.inf):
        raise _invalid("loss_fn_config.clip_low_threshold", "it is above clip_high_threshold")
    return settings


def _datum(message: pb.Datum, where: str, loss: TokenLoss, limits: DataLimits) -> Datum:
    tokens = _tokens(message.model_input, f"{where}.model_input", limits)
    sent = dict(message.loss_fn_inputs.items())
    where = f"{where}.loss_fn_inputs"
    field = f"{where}.{_TARGETS}"
    if _TARGETS not in sent:
        raise _invalid(field, "it is missing")
    targets = _array(sent.pop(_TARGETS), field, np.dtype(np.int64))
    is_flat = targets.ndim == 1
    if len(targets) != len(tokens):
        raise _invalid(field, f"{len(targets)} targets for {len(tokens)} input tokens")
    if targets.ndim == 2 and not 1 <= targets.shape[1] <= MAX_TARGETS:
        raise _invalid(field, f"a token has at most {MAX_TARGETS} targets here")
    if targets.min() < 0 or targets.max() >= limits.vocabulary:
        raise _invalid(field, f"token ids are 0 to {limits.vocabulary - 1}")
    inputs = {name: _loss_input(sent.pop(name, None), f"{where}.{name}", targets, name) for name in loss.inputs}
    if sent:
        raise _invalid(f"{where}.{min(sent)[:80]}", "the loss does not read it here")
    width = 1 if is_flat else targets.shape[1]
    return Datum(
        tokens=tokens,
        targets=targets.reshape(len(tokens), width),
        is_flat=is_flat,
        inputs={name: values.reshape(len(tokens), width) for name, values in inputs.items()},
    )


def _loss_input(tensor: pb.Tensor | None, where: str, targets: Int64Array, name: str) -> Float32Array:
    if tensor is None and name == _WEIGHTS:
        return np.ones(targets.shape, dtype=np.float32)
    if tensor is None:
        raise _invalid(where, "it is missing")
    values: Float32Array = _array(tensor, where, np.dtype(np.float32))
    if values.shape != targets.shape:
        raise _invalid(where, f"its shape is {values.shape}, that of {_TARGETS} {targets.shape}")
    if not np.isfinite(values).all():
        raise _invalid(where, "it has values that are not finite")
    return values


def _tokens(chunks: Sequence[pb.Chunk], where: str, limits: DataLimits) -> Int64Array:
    parts: list[npt.NDArray[np.int32]] = []
    for chunk in chunks:
        kind = chunk.WhichOneof("chunk")
        if kind != "encoded_text":
            raise _invalid(f"{where}.{kind}", "this server reads text tokens only")
        if len(chunk.encoded_text.tokens) % 4:
            raise _invalid(where, "its tokens are not whole integers of 32 bits")
        parts.append(np.frombuffer(chunk.encoded_text.tokens, dtype="<i4"))
    tokens = np.concatenate([np.zeros(0, dtype=np.int32), *parts]).astype(np.int64)
    check_tokens(tokens, where, limits)
    return tokens


def check_tokens(tokens: npt.NDArray[Any], where: str, limits: DataLimits) -> None:
    """Checks the tokens of a sequence. Raises: InvalidInput."""
    if not 1 <= len(tokens) <= limits.context:
        raise _invalid(where, f"it has {len(tokens)} tokens, the model takes 1 to {limits.context}")
    if tokens.min() < 0 or tokens.max() >= limits.vocabulary:
        raise _invalid(where, f"token ids are 0 to {limits.vocabulary - 1}")


def _array(tensor: pb.Tensor, where: str, kind: np.dtype[Any]) -> npt.NDArray[Any]:
    """Returns a tensor of one or two dimensions. Raises: InvalidInput."""
    elements = _ELEMENTS.get(tensor.dtype)
    shape = tuple(tensor.shape)
    if elements is None or elements.kind != kind.kind:
        raise _invalid(where, f"its element type is not {kind.name}")
    if tensor.WhichOneof("encoding") == "sparse_csr":
        return _dense(tensor.sparse_csr, shape, elements, where).astype(kind)
    count = len(tensor.dense) // elements.itemsize
    shape = shape or (count,)
    if len(shape) > 2 or min(shape) < 0 or math.prod(shape) * elements.itemsize != len(tensor.dense):
        raise _invalid(where, f"{len(tensor.dense)} bytes are not a tensor of shape {list(shape)[:8]}")
    values: npt.NDArray[Any] = np.frombuffer(tensor.dense, dtype=elements).reshape(shape).astype(kind)
    return values


def _dense(csr: pb.SparseCsr, shape: tuple[int, ...], elements: np.dtype[Any], where: str) -> npt.NDArray[Any]:
    """Returns a tensor in compressed sparse rows with its zeros. Raises: InvalidInput."""
    if len(shape) != 2 or not (0 <= shape[0] <= 2**20 and 0 <= shape[1] <= MAX_TARGETS):
        raise _invalid(where, f"a sparse tensor has two dimensions, the second at most {MAX_TARGETS}")
    if len(csr.values) % elements.itemsize or (len(csr.crow_indices) | len(csr.col_indices)) % 8:
        raise _invalid(where, "its parts are not whole elements")
    values = np.frombuffer(csr.values, dtype=elements)
    rows, columns = np.frombuffer(csr.crow_indices, dtype="<i8"), np.frombuffer(csr.col_indices, dtype="<i8")
    lengths = np.diff(rows)
    is_whole = len(rows) == shape[0] + 1 and rows[0] == 0 and rows[-1] == len(values) == len(columns)
    if not is_whole or (lengths < 0).any() or (len(columns) and not 0 <= columns.min() <= columns.max() < shape[1]):
        raise _invalid(where, "its indices do not fit its shape")
    dense = np.zeros(shape, dtype=elements)
    dense[np.repeat(np.arange(shape[0]), lengths), columns] = values
    return dense


def _invalid(where: str, cause: str) -> InvalidInput:
    return InvalidInput(f"cannot use {where}: {cause}; correct the field", code="tinker.invalid_field")
