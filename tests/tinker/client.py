"""Client of the Tinker API for tests, which sends what the SDK sends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import httpx
import numpy as np

from astraflow.wire.pb import tinker_pb2 as pb

PROTOBUF = "application/x-protobuf"


def tensor(values: Any) -> pb.Tensor:
    array = np.asarray(values)
    is_integer = array.dtype.kind == "i"
    return pb.Tensor(
        dense=array.astype("<i8" if is_integer else "<f4").tobytes(),
        dtype=pb.DTYPE_INT64 if is_integer else pb.DTYPE_FLOAT32,
        shape=array.shape,
    )


def datum(tokens: Sequence[int], **inputs: Any) -> pb.Datum:
    text = pb.EncodedTextChunk(tokens=np.array(tokens, dtype="<i4").tobytes())
    return pb.Datum(
        model_input=[pb.Chunk(encoded_text=text)],
        loss_fn_inputs={name: tensor(values) for name, values in inputs.items()},
    )


def sentence(seed: int, *, length: int = 9, count: int = 3) -> list[pb.Datum]:
    """Returns data for the loss cross_entropy."""
    rng = np.random.default_rng(seed)
    texts = rng.integers(5, 100, (count, length + 1))
    return [datum(text[:-1], target_tokens=text[1:], weights=np.ones(length)) for text in texts.tolist()]


def logprobs_of(answer: bytes) -> list[list[float]]:
    """Returns the logprobs of each datum."""
    (record,) = pb.ForwardBackwardOutput.FromString(answer).loss_fn_outputs
    field_ = record.fields["logprobs"]
    offsets = np.frombuffer(field_.offsets, dtype="<i8") // 4
    values = np.frombuffer(field_.data, dtype="<f4")
    return [values[begin:end].tolist() for begin, end in pairwise(offsets)]


@dataclass
class Client:
    """One tenant, with one session."""

    http: httpx.AsyncClient
    session: str = ""
    numbers: dict[str, int] = field(default_factory=dict)
    """Number of the last request of each model."""

    @classmethod
    def of(cls, app: Any, key: str) -> Self:
        transport = httpx.ASGITransport(app=app)
        return cls(httpx.AsyncClient(transport=transport, base_url="http://t/api/v1", headers={"X-API-Key": key}))

    async def __aenter__(self) -> Self:
        await self.http.__aenter__()
        answer = await self.post("create_session", tags=[], sdk_version="0.38.0", user_metadata=None)
        self.session = answer["session_id"]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.__aexit__(kind, problem, trace)

    async def post(self, path: str, /, **body: Any) -> dict[str, Any]:
        response = await self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def refusal(self, path: str, /, **body: Any) -> tuple[int, str, str]:
        """Returns status, code and message of a refused request."""
        response = await self.http.post(path, json=body)
        answer = response.json()
        return response.status_code, answer["code"], answer["message"]

    async def result(self, request: str) -> Any:
        """Returns the result of a future: JSON, or the bytes of a message."""
        response = await self.http.post("retrieve_future", json={"request_id": request}, headers={"Accept": PROTOBUF})
        assert response.status_code == 200, response.text
        return response.content if response.headers["content-type"] == PROTOBUF else response.json()

    async def create(self, number: int = 0, **config: Any) -> str:
        """Returns a new model."""
        future = await self.post(
            "create_model",
            session_id=self.session,
            model_seq_id=number,
            base_model="tiny",
            lora_config={"rank": 4, "seed": 1, **config},
        )
        model: str = (await self.result(future["request_id"]))["model_id"]
        return model

    async def send_passes(self, model: str, data: Sequence[pb.Datum], loss: str = "cross_entropy", **more: Any) -> Any:
        """Returns the answer to forward_backward."""
        message = pb.ForwardBackwardRequest(
            model_id=model, seq_id=self.next_number(model), data=data, loss_fn=loss, **more
        )
        return await self.http.post(
            "forward_backward", content=message.SerializeToString(), headers={"Content-Type": PROTOBUF}
        )

    async def train(self, model: str, data: Sequence[pb.Datum], loss: str = "cross_entropy", **more: Any) -> Any:
        """Returns the result of forward_backward."""
        response = await self.send_passes(model, data, loss, **more)
        assert response.status_code == 200, response.text
        return await self.result(response.json()["request_id"])

    async def step(self, model: str, **params: Any) -> Any:
        """Returns the result of an optimizer step."""
        return await self.call("optim_step", model, adam_params={"learning_rate": 0.01, **params})

    async def call(self, path: str, model: str, /, **body: Any) -> Any:
        """Returns the result of a request to a model."""
        future = await self.post(path, model_id=model, seq_id=self.next_number(model), **body)
        return await self.result(future["request_id"])

    async def sample(self, sampler: str, number: int, **body: Any) -> pb.SampleResponse:
        """Returns a sample of the prompt 5, 6, 7."""
        request: Mapping[str, Any] = {
            "prompt": {"chunks": [{"tokens": [5, 6, 7], "type": "encoded_text"}]},
            "sampling_params": {"max_tokens": 5},
            **body,
        }
        future = await self.post("asample", sampling_session_id=sampler, seq_id=number, **request)
        return pb.SampleResponse.FromString(await self.result(future["request_id"]))

    def next_number(self, model: str) -> int:
        self.numbers[model] = self.numbers.get(model, 0) + 1
        return self.numbers[model]
