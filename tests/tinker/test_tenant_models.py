"""A tenant's gradient and optimizer step equal references in float64, whatever other tenants compute."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from astraflow.contract.errors import InvalidInput
from astraflow.tinker.base_models import SharedBase, TenantAdapters, chosen_targets
from astraflow.tinker.requests import AdamParams
from astraflow.tinker.tenant_models import TenantModel
from astraflow.tinker.training_data import TrainingData, training_data
from astraflow.wire.pb import tinker_pb2 as pb
from tests.errors import raises_code
from tests.tinker.client import datum, sentence


def data_of(base: SharedBase, data: list[pb.Datum], loss: str = "cross_entropy") -> TrainingData:
    return training_data(pb.ForwardBackwardRequest(model_id="m", seq_id=1, data=data, loss_fn=loss), base.limits)


def new_model(base: SharedBase, *, rank: int = 4, seed: int = 1, pass_tokens: int = 24) -> TenantModel:
    targets = chosen_targets(base, attention=True, mlp=True)
    adapters = TenantAdapters.begin(base, rank=rank, targets=targets, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    model = TenantModel(base, adapters, pass_tokens=pass_tokens)
    for name, weight in model._engine.weights().items():
        if ".lora_B." in name:
            weight.copy_(0.3 * torch.randn(weight.shape, generator=generator))
    model._discard_gradient()  # writes the weights back
    return model


def train(model: TenantModel, data: TrainingData) -> bytes:
    work = model.train(data)
    while True:
        try:
            next(work)
        except StopIteration as end:
            answer: bytes = end.value
            return answer


def gradients(model: TenantModel) -> dict[str, Tensor]:
    return {name: weight.grad.clone() for name, weight in model.adapters.weights().items() if weight.grad is not None}


def reference(base: SharedBase, model: TenantModel, data: list[pb.Datum]) -> tuple[float, dict[str, Tensor]]:
    """Returns loss and gradients of importance sampling, with adapters merged into a model in float64."""
    merged = deepcopy(base.model).double().requires_grad_(False)
    factors = {name: weight.detach().double().requires_grad_() for name, weight in model.adapters.weights().items()}
    scale = model.adapters.options.scale
    weights = {
        f"{name}.weight": merged.get_submodule(name).weight
        + scale * factors[f"{name}.lora_B.weight"] @ factors[f"{name}.lora_A.weight"]
        for name in base.layers
    }
    loss = torch.zeros((), dtype=torch.float64)
    for sequence in data_of(base, data, "importance_sampling").data:
        tokens = torch.from_numpy(sequence.tokens)[None]
        logits = functional_call(merged, weights, args=(), kwargs={"input_ids": tokens, "use_cache": False}).logits[0]
        logprobs = logits.log_softmax(-1).gather(-1, torch.from_numpy(sequence.targets))
        sampled, advantages = (torch.from_numpy(sequence.inputs[n]).double() for n in ("logprobs", "advantages"))
        loss = loss - ((logprobs - sampled).exp() * advantages).sum()
    loss.backward()
    return loss.item(), {name: factor.grad for name, factor in factors.items() if factor.grad is not None}


def sampled(seed: int, lengths: tuple[int, ...], *, width: int | None = None) -> list[pb.Datum]:
    """Returns data for importance sampling."""
    rng = np.random.default_rng(seed)
    data = []
    for length in lengths:
        shape = (length,) if width is None else (length, width)
        inputs = {"logprobs": rng.normal(-4, 0.3, shape), "advantages": rng.normal(0, 1, shape)}
        data.append(datum(rng.integers(5, 100, length).tolist(), target_tokens=rng.integers(5, 100, shape), **inputs))
    return data


@pytest.mark.parametrize("width", [None, 3])
def test_the_gradient_equals_a_merged_model_in_float64(base: SharedBase, width: int | None) -> None:
    model, data = new_model(base), sampled(0, (5, 9, 2, 12), width=width)
    output = pb.ForwardBackwardOutput.FromString(train(model, data_of(base, data, "importance_sampling")))
    loss, expected = reference(base, model, data)
    assert output.metrics["loss:sum"] == pytest.approx(loss, rel=1e-5)
    computed = gradients(model)
    assert computed.keys() == expected.keys()
    for name, gradient in computed.items():
        assert (gradient - expected[name]).abs().max() < 2e-5 * expected[name].abs().max()


def test_optimizer_steps_equal_adamw_of_torch(base: SharedBase) -> None:
    model = new_model(base)
    own = {name: weight.detach().double().requires_grad_() for name, weight in model.adapters.weights().items()}
    plain = torch.optim.AdamW(own.values(), lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for number, rate in enumerate((0.01, 0.005, 0.0)):
        train(model, data_of(base, sentence(number)))
        for name, gradient in gradients(model).items():
            own[name].grad = gradient.double()
        torch.nn.utils.clip_grad_norm_(own.values(), 1.0)
        plain.param_groups[0]["lr"] = rate
        plain.step()
        params = AdamParams(learning_rate=rate, beta2=0.95, eps=1e-8, weight_decay=0.1, grad_clip_norm=1.0)
        model.step(params)
    for name, weight in model.adapters.weights().items():
        torch.testing.assert_close(weight.double(), own[name], rtol=1e-4, atol=1e-6)


def test_models_of_different_ranks_train_bit_for_bit_as_alone(base: SharedBase) -> None:
    def logprobs(models: list[TenantModel]) -> list[bytes]:
        answers = []
        for number in range(3):
            works = [model.train(data_of(base, sentence(number + 10 * rank))) for rank, model in enumerate(models)]
            while works:  # one pass of each in turn
                works = [work for work in works if next(work, None) is not None]
            for model in models:
                model.step(AdamParams(learning_rate=0.01))
        for rank, model in enumerate(models):
            answers.append(train(model, data_of(base, sentence(10 * rank))))
        return answers

    both = logprobs([new_model(base, rank=4), new_model(base, rank=7, seed=3)])
    assert logprobs([new_model(base, rank=4)]) == both[:1]


def test_a_loss_that_is_not_finite_discards_the_gradient_of_its_model_only(base: SharedBase) -> None:
    model, other = new_model(base), new_model(base)
    train(other, data_of(base, sentence(0)))
    before = gradients(other)
    train(model, data_of(base, sentence(0)))
    extreme = {"logprobs": [-3e38] * 5, "advantages": [3e38] * 5}
    huge = [*sampled(0, (20,)), datum([5] * 5, target_tokens=[6] * 5, **extreme)]
    with raises_code(InvalidInput, "tinker.non_finite_loss"):
        train(model, data_of(base, huge, "importance_sampling"))
    assert gradients(model) == {}
    for name, gradient in gradients(other).items():
        assert torch.equal(gradient, before[name])


def test_a_forward_pass_leaves_no_gradient(base: SharedBase) -> None:
    model = new_model(base)
    message = pb.ForwardBackwardRequest(model_id="m", seq_id=1, data=sentence(0), loss_fn="cross_entropy")
    trained = train(model, training_data(message, base.limits))
    model._discard_gradient()
    message.forward_only = True
    assert train(model, training_data(message, base.limits)) == trained
    assert gradients(model) == {}
