"""Training data is checked field by field, and becomes arrays."""

from typing import Any

import numpy as np
import pytest

from astraflow.contract.errors import InvalidInput
from astraflow.tinker.training_data import DataLimits, encode_output, parse_request, passes, training_data
from astraflow.wire.pb import tinker_pb2 as pb
from tests.errors import raises_code
from tests.tinker.client import datum, logprobs_of, sentence, tensor

LIMITS = DataLimits(vocabulary=100, context=8)
TOKENS = [5, 6, 7]
TARGETS = [6, 7, 8]
IMAGE = pb.Datum(model_input=[pb.Chunk(image=pb.UnservedChunk())], loss_fn_inputs={"target_tokens": tensor(TARGETS)})
CUT = pb.Datum(model_input=[pb.Chunk(encoded_text=pb.EncodedTextChunk(tokens=b"12345"))])
BYTES = pb.Datum(
    model_input=datum(TOKENS).model_input,
    loss_fn_inputs={"target_tokens": pb.Tensor(dense=b"1" * 9, dtype=pb.DTYPE_INT64)},
)
HUGE = pb.Datum(
    model_input=datum(TOKENS).model_input,
    loss_fn_inputs={"target_tokens": pb.Tensor(dense=b"", dtype=pb.DTYPE_INT64, shape=[2**40, 2**40])},
)


def request(*data: pb.Datum, loss: str = "cross_entropy", **config: float) -> pb.ForwardBackwardRequest:
    return pb.ForwardBackwardRequest(model_id="m", seq_id=1, data=data, loss_fn=loss, loss_fn_config=config)


def sparse(shape: list[int], rows: list[int], columns: list[int], values: list[int]) -> pb.Tensor:
    parts = [np.array(part, dtype="<i8").tobytes() for part in (values, rows, columns)]
    csr = pb.SparseCsr(values=parts[0], crow_indices=parts[1], col_indices=parts[2])
    return pb.Tensor(sparse_csr=csr, dtype=pb.DTYPE_INT64, shape=shape)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (request(), "data"),
        (request(datum([], target_tokens=TARGETS)), "data[0].model_input"),
        (request(datum([5] * 9, target_tokens=[5] * 9)), "data[0].model_input"),
        (request(datum([5, -1, 7], target_tokens=TARGETS)), "data[0].model_input"),
        (request(datum([5, 100, 7], target_tokens=TARGETS)), "data[0].model_input"),
        (request(IMAGE), "data[0].model_input.image"),
        (request(CUT), "data[0].model_input"),
        (request(BYTES), "data[0].loss_fn_inputs.target_tokens"),
        (request(HUGE), "data[0].loss_fn_inputs.target_tokens"),
        (request(datum(TOKENS)), "data[0].loss_fn_inputs.target_tokens"),
        (request(datum(TOKENS, target_tokens=[6, 7])), "data[0].loss_fn_inputs.target_tokens"),
        (request(datum(TOKENS, target_tokens=[6, 7, 100])), "data[0].loss_fn_inputs.target_tokens"),
        (request(datum(TOKENS, target_tokens=[6.0, 7.0, 8.0])), "data[0].loss_fn_inputs.target_tokens"),
        (request(datum(TOKENS, target_tokens=[[6] * 33] * 3)), "data[0].loss_fn_inputs.target_tokens"),
        (request(datum(TOKENS, target_tokens=TARGETS, weights=[1.0, 1.0])), "data[0].loss_fn_inputs.weights"),
        (request(datum(TOKENS, target_tokens=TARGETS, weights=[1.0, np.nan, 1.0])), "data[0].loss_fn_inputs.weights"),
        (request(datum(TOKENS, target_tokens=TARGETS, mask=[1.0] * 3)), "data[0].loss_fn_inputs.mask"),
        (request(datum(TOKENS, target_tokens=TARGETS), loss="ppo"), "data[0].loss_fn_inputs.logprobs"),
        (request(datum(TOKENS, target_tokens=TARGETS), clip=1.0), "loss_fn_config.clip"),
        (
            request(*sentence(0, length=3, count=1), loss="dro", beta=float("nan")),
            "data[0].loss_fn_inputs.logprobs",
        ),
    ],
)
def test_an_invalid_field_is_refused_by_its_name(message: pb.ForwardBackwardRequest, field: str) -> None:
    with raises_code(InvalidInput, "tinker.invalid_field") as refused:
        training_data(message, LIMITS)
    assert f"cannot use {field}: " in str(refused.value)


@pytest.mark.parametrize(
    "config", [{"clip_low_threshold": 1.5}, {"clip_low_threshold": float("nan")}, {"clip_high_threshold": -1.0}]
)
def test_clip_thresholds_must_be_numbers_in_order(config: dict[str, Any]) -> None:
    data = datum(TOKENS, target_tokens=TARGETS, logprobs=[0.0] * 3, advantages=[1.0] * 3)
    with raises_code(InvalidInput, "tinker.invalid_field"):
        training_data(request(data, loss="ppo", **config), LIMITS)


def test_a_text_in_the_settings_of_a_loss_is_refused() -> None:
    message = request(*sentence(0, length=3))
    message.loss_fn_config_v2["a"].text = "b"
    with raises_code(InvalidInput, "tinker.invalid_field"):
        training_data(message, LIMITS)


def test_bytes_that_are_no_message_are_refused() -> None:
    with raises_code(InvalidInput, "tinker.not_protobuf"):
        parse_request(b"\xff\xff\xff")


def test_sparse_targets_equal_dense_ones() -> None:
    dense = datum(TOKENS, target_tokens=[[6, 0], [0, 7], [0, 0]])
    listed = datum(TOKENS)
    listed.loss_fn_inputs["target_tokens"].CopyFrom(sparse([3, 2], [0, 1, 2, 2], [0, 1], [6, 7]))
    (first,), (second,) = (training_data(request(each), LIMITS).data for each in (dense, listed))
    assert first.targets.tolist() == second.targets.tolist() == [[6, 0], [0, 7], [0, 0]]
    assert first.inputs["weights"].tolist() == [[1.0, 1.0]] * 3


@pytest.mark.parametrize(
    ("rows", "columns"), [([0, 1, 2], [0, 1]), ([0, 2, 1, 2], [0, 1]), ([0, 1, 2, 2], [0, 2]), ([0, 1, 2, 9], [0, 1])]
)
def test_sparse_targets_whose_indices_do_not_fit_are_refused(rows: list[int], columns: list[int]) -> None:
    listed = datum(TOKENS)
    listed.loss_fn_inputs["target_tokens"].CopyFrom(sparse([3, 2], rows, columns, [6, 7]))
    with raises_code(InvalidInput, "tinker.invalid_field"):
        training_data(request(listed), LIMITS)


def test_passes_hold_as_many_sequences_as_fit_with_padding_and_keep_their_order() -> None:
    lengths = [3, 3, 8, 2, 1]
    data = training_data(request(*(datum([5] * n, target_tokens=[6] * n) for n in lengths)), LIMITS).data
    grouped = [[len(datum.tokens) for datum in batch] for batch in passes(data, tokens=10)]
    assert grouped == [[3, 3], [8], [2, 1]]


def test_outputs_of_every_shape_are_encoded_in_order() -> None:
    flat = np.array([-1.0, -2.0], dtype=np.float32)
    answer = encode_output([flat, flat[:1]], {"loss:sum": 3.0})
    assert logprobs_of(answer) == [[-1.0, -2.0], [-1.0]]
    mixed = pb.ForwardBackwardOutput.FromString(encode_output([flat, flat.reshape(1, 2)], {})).loss_fn_outputs
    assert [list(record.fields["logprobs"].trailing_shape) for record in mixed] == [[], [2]]
