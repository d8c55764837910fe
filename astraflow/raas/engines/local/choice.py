"""Choice of the batcher: the fastest one that computes the same values as the model's own forward pass."""

import asyncio
from collections import deque
from dataclasses import replace

import numpy as np
import torch
from transformers import PreTrainedModel

from astraflow.contract.errors import AstraFlowError, InvalidInput
from astraflow.contract.rollouts.generation import Sampling
from astraflow.contract.rollouts.trajectories import Float32Array, Int32Array
from astraflow.models.check_conditions import check_conditions
from astraflow.models.output_head import has_known_head
from astraflow.raas.engines.local.batcher import Batcher, BatchLimits
from astraflow.raas.engines.local.lockstep import LockstepBatcher, RecomputingBatcher
from astraflow.raas.engines.local.sequences import Sequence
from astraflow.raas.engines.local.slots import SlotBatcher, UnpaddedSlotBatcher
from astraflow.raas.engines.local.speculation import Speculation
from astraflow.runtime.logs import get_logger

log = get_logger()

_FROM_BEGINNING = "turns of conversations are computed from their beginning"
_BY_LENGTH = "prompts of each length are computed after one another"
_LOCKSTEP = f"a step has a forward pass for each length of the running sequences, and {_FROM_BEGINNING}"
_WHOLE = "each token costs a forward pass over its whole sequence"
_CANDIDATES: tuple[tuple[type[Batcher], bool, str], ...] = (
    (SlotBatcher, True, ""),
    (UnpaddedSlotBatcher, True, _BY_LENGTH),
    (SlotBatcher, False, _FROM_BEGINNING),
    (UnpaddedSlotBatcher, False, f"{_BY_LENGTH}, and {_FROM_BEGINNING}"),
    (LockstepBatcher, False, _LOCKSTEP),
    (RecomputingBatcher, False, _WHOLE),
)
"""Batchers, whether they keep what ended sequences have computed, and what they cost; the fastest first."""
_TOLERANCE = 1e-3
"""Largest accepted difference of a logprob in float32, in nats."""
_ROUNDED_TOLERANCE = 0.1
"""Largest accepted mean of the differences with element types of fewer bits, in nats."""
_LIMITS = BatchLimits(sequences=16, cache_tokens=4096, prefill_tokens=4096, prefix_bytes=2**30)


@torch.inference_mode()
def exact_batcher(model: PreTrainedModel, limits: BatchLimits, speculation: Speculation | None = None) -> Batcher:
    """Returns the fastest batcher that is exact for the model; logs a warning with the cost if it is a slow one.

    Raises: InvalidInput when none is, as with weights that are not finite.
    """
    reasons: list[str] = []
    for kind, keeps_prefixes, cost in _CANDIDATES:
        prefix_bytes = limits.prefix_bytes if keeps_prefixes else 0
        reason = _reason_against(kind, model, prefix_bytes=_LIMITS.prefix_bytes if keeps_prefixes else 0)
        if reason is None:
            if reasons:
                log.warning("engine_batches_slowly", way=kind.way, cost=cost, reasons=reasons)
            return kind(model, replace(limits, prefix_bytes=prefix_bytes), speculation)
        reasons.append(f"{kind.__name__}: {reason}")
    raise InvalidInput(
        f"cannot serve a {type(model).__name__} in the engine local_torch: its logprobs are not those of the model "
        f"alone ({'; '.join(reasons)}); check its weights, or use the engine sglang or vllm",
        code="engine.inexact_model",
    )


def _reason_against(kind: type[Batcher], model: PreTrainedModel, *, prefix_bytes: int) -> str | None:
    """Returns why the batcher is not exact; None when it is."""
    if kind is not RecomputingBatcher and not has_known_head(model, model.device):
        return "its logits are not a linear layer of its last hidden state, scaled and bounded as configured"
    with check_conditions(model, model.device):
        try:
            batcher = kind(model, replace(_LIMITS, prefix_bytes=prefix_bytes))
            gaps = np.abs(np.concatenate(_gaps(batcher, model)))
        except AstraFlowError as problem:
            return str(problem)
        except Exception as problem:  # code of a model that does not support this use of a cache
            return f"{type(problem).__name__}: {problem}"
    is_exact = next(model.parameters()).dtype == torch.float32
    gap = float(gaps.max() if is_exact else gaps.mean())
    return None if gap <= (_TOLERANCE if is_exact else _ROUNDED_TOLERANCE) else f"they differ by {gap:.3g} nats"


def _gaps(batcher: Batcher, model: PreTrainedModel) -> list[Float32Array]:
    """Returns the differences of logprobs: of a group, of prompts of other lengths, and of later turns of them."""
    loop = asyncio.new_event_loop()
    texts = [np.arange(length, dtype=np.int32) % model.config.get_text_config().vocab_size for length in (19, 19, 7, 4)]
    try:
        first = [_sequence(text, number, loop) for number, text in enumerate(texts)]
        _run(batcher, first[:3], then=first[3:])
        later = [
            _sequence(np.append(turn.all_tokens(), text[:3]), 9, loop) for turn, text in zip(first, texts, strict=True)
        ]
        _run(batcher, later[:1], then=later[1:])
    finally:
        loop.close()
    return [np.array(sequence.logprobs, dtype=np.float32) - _alone(sequence, model) for sequence in (*first, *later)]


def _sequence(prompt: Int32Array, number: int, loop: asyncio.AbstractEventLoop) -> Sequence:
    sampling = Sampling(max_new_tokens=4 + number % 2)
    return Sequence(
        request_id=str(number), prompt=prompt, sampling=sampling, random_key=number, reply=loop.create_future()
    )


def _run(batcher: Batcher, sequences: list[Sequence], *, then: list[Sequence]) -> None:
    """Generates until all sequences have ended; some join after a step."""
    for joining in (sequences, then):
        for _ in batcher.admit(deque(joining)):
            pass
        batcher.step()
    while batcher.running:
        batcher.step()


def _alone(sequence: Sequence, model: PreTrainedModel) -> Float32Array:
    """Returns the logprobs of the sequence's tokens by the model's own forward pass."""
    ids = torch.from_numpy(sequence.all_tokens().astype(np.int64)).to(model.device)
    logits = model(input_ids=ids[None], use_cache=False).logits[0, len(sequence.prompt) - 1 : -1].float()
    logprobs = logits.log_softmax(-1).gather(-1, ids[len(sequence.prompt) :, None])
    return np.asarray(logprobs[:, 0].cpu().numpy(), dtype=np.float32)
