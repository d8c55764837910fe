"""Sampling for tenants: the sequences of one sampler are a batch of their own, and decode a few tokens at a time."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from astraflow.contract.errors import InvalidInput
from astraflow.contract.ids import Version
from astraflow.contract.rollouts.generation import Finish, Sampling
from astraflow.contract.rollouts.token_columns import TokenColumn
from astraflow.contract.rollouts.trajectories import Int32Array
from astraflow.raas.engines.local.batcher import EndedSequence
from astraflow.raas.engines.local.parameters import LayerAdapter
from astraflow.raas.engines.local.sequences import Sequence, random_stream_key
from astraflow.runtime.logs import get_logger
from astraflow.tinker.base_models import SharedBase
from astraflow.tinker.requests import Sample
from astraflow.tinker.training_data import Float32Array, Int64Array, check_tokens
from astraflow.tinker.work import Outcome
from astraflow.trainer.step.packing import pack_sequences
from astraflow.wire.pb import tinker_pb2 as pb

log = get_logger()

_NO_LOGPROB = -99999.0
"""Logprob of an absent token among the most likely ones, whose id is 0."""
STEPS = 16
"""Tokens of each sequence between two chances of other tenants."""


@dataclass(slots=True, kw_only=True, eq=False)
class SampleJob:
    """Sampling request in progress."""

    id: str
    prompt: Int32Array
    sequences: list[Sequence]
    request: Sample
    settle: Callable[[Outcome], None]
    """Takes the result, a SampleResponse. From any thread."""
    ended: dict[Sequence, Finish] = field(default_factory=dict)
    is_cancelled: bool = False


def sample_job(request_id: str, request: Sample, base: SharedBase, settle: Callable[[Outcome], None]) -> SampleJob:
    """Returns the job of a request. Raises: InvalidInput naming the field."""
    prompt = np.array([token for chunk in request.prompt.chunks for token in chunk.tokens], dtype=np.int32)
    check_tokens(prompt, "prompt", base.limits)
    remaining = base.limits.context - len(prompt)
    if remaining < 1:
        raise InvalidInput(
            f"cannot continue the prompt: it fills the context of {base.limits.context} tokens; shorten it",
            code="tinker.context_exceeded",
        )
    sampling = _sampling(request, base, limit=remaining)
    sequences = [_sequence(request_id, prompt, sampling, base, number=number) for number in range(request.num_samples)]
    return SampleJob(id=request_id, prompt=prompt, sequences=sequences, request=request, settle=settle)


class SamplerRun:
    """Requests of one sampler. Implements `Work`; complete whenever no sequence is left."""

    def __init__(self, base: SharedBase, read_adapters: Callable[[], Mapping[str, LayerAdapter]]) -> None:
        """read_adapters: called once, in the executor's thread."""
        self._base = base
        self._read_adapters = read_adapters
        self._adapters: Mapping[str, LayerAdapter] | None = None
        self._batcher = base.batcher()
        self._lock = threading.Lock()
        self._new: deque[SampleJob] = deque()
        self._jobs: dict[str, SampleJob] = {}
        self._waiting: deque[Sequence] = deque()
        self._is_queued = False

    def add(self, job: SampleJob) -> bool:
        """Adds a request; returns whether the run must be queued for it. From any thread."""
        with self._lock:
            self._new.append(job)
            was_queued, self._is_queued = self._is_queued, True
            return not was_queued

    @torch.no_grad()
    def advance(self) -> tuple[int, bool]:
        """Admits new requests and decodes some tokens."""
        cost = self._begin_jobs()
        self._base.model.eval()
        try:
            if self._adapters is None:
                self._adapters = self._read_adapters()
            with self._base.computing_with(self._adapters):
                self._drop_cancelled()
                for ended in self._batcher.admit(self._waiting):
                    self._note(ended)
                for _ in range(STEPS):
                    cost += len(self._batcher.running)
                    self._note(self._batcher.step())
        except Exception as problem:  # fails the requests of this sampler only
            log.exception("sampling_failed", sequences=len(self._batcher.running))
            self._fail(problem)
        self._settle()
        with self._lock:
            self._is_queued = bool(self._new or self._jobs)
            return cost, not self._is_queued

    def cancel(self, request_id: str) -> None:
        """Ends a request with what it has sampled. From any thread."""
        with self._lock:
            for job in (*self._new, *self._jobs.values()):
                if job.id == request_id:
                    job.is_cancelled = True

    def _begin_jobs(self) -> int:
        with self._lock:
            jobs, self._new = list(self._new), deque()
            self._jobs |= {job.id: job for job in jobs}
        self._waiting.extend(sequence for job in jobs for sequence in job.sequences)
        return sum(len(job.prompt) for job in jobs)

    def _drop_cancelled(self) -> None:
        dropped = {id(s) for job in self._jobs.values() if job.is_cancelled for s in job.sequences}
        if not dropped:
            return
        self._batcher.remove(lambda sequence: id(sequence) in dropped)
        self._waiting = deque(sequence for sequence in self._waiting if id(sequence) not in dropped)
        for job in self._jobs.values():
            if job.is_cancelled:
                job.ended |= {sequence: Finish.ABORT for sequence in job.sequences if sequence not in job.ended}

    def _note(self, ended: list[EndedSequence]) -> None:
        for end in ended:
            self._jobs[end.sequence.request_id].ended[end.sequence] = end.finish

    def _settle(self) -> None:
        complete = [job for job in self._jobs.values() if len(job.ended) == len(job.sequences)]
        for job in complete:
            del self._jobs[job.id]
            tokens = len(job.prompt) + sum(len(sequence.tokens) for sequence in job.sequences)
            try:
                with torch.no_grad(), self._base.computing_with(self._adapters or {}):
                    response = _response(job, self._base)
            except Exception as problem:  # such as a lack of memory for the scores of a prompt
                log.exception("sampling_failed", sequences=len(job.sequences))
                job.settle(Outcome.failed(problem, tokens=tokens))
            else:
                job.settle(Outcome(answer=response, kind="ok", tokens=tokens))

    def _fail(self, problem: Exception) -> None:
        self._batcher.evict()
        self._waiting.clear()
        with self._lock:
            jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            job.settle(Outcome.failed(problem, tokens=len(job.prompt)))


def _sampling(request: Sample, base: SharedBase, *, limit: int) -> Sampling:
    params = request.sampling_params
    stop = [params.stop] if isinstance(params.stop, str) else params.stop
    texts = tuple(part for part in stop or () if isinstance(part, str))
    if any(not text for text in texts) or len(stop or ()) > 64:
        raise InvalidInput(
            "cannot use sampling_params.stop: it has an empty text or more than 64 entries; correct the field",
            code="tinker.invalid_field",
        )
    return Sampling(
        max_new_tokens=min(params.max_tokens or limit, limit),
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=max(params.top_k, 0),
        stop_tokens=base.tokenizer.stop_tokens
        if stop is None
        else tuple(part for part in stop if isinstance(part, int)),
        stop_strings=texts,
        seed=params.seed,
        top_tokens=request.topk_sample_logprobs,
    )


def _sequence(request_id: str, prompt: Int32Array, sampling: Sampling, base: SharedBase, *, number: int) -> Sequence:
    """Returns a sequence to sample. Its random numbers depend on the seed, or on the request, so that a restarted
    server draws the same tokens."""
    seed, decode = sampling.seed, base.tokenizer.decode
    return Sequence(
        request_id=request_id,
        prompt=prompt,
        sampling=sampling,
        random_key=random_stream_key(0 if seed is None else seed, f"{request_id if seed is None else ''}/{number}"),
        reply=asyncio.get_running_loop().create_future(),
        decode=partial(decode, keep_special_tokens=True) if sampling.stop_strings else None,
    )


def _response(job: SampleJob, base: SharedBase) -> bytes:
    response = pb.SampleResponse()
    for sequence in job.sequences:
        is_stopped = job.ended[sequence] is Finish.STOP
        sampled = response.sequences.add(
            stop_reason=pb.STOP_REASON_STOP if is_stopped else pb.STOP_REASON_LENGTH,
            tokens=np.array(sequence.tokens, dtype="<i4").tobytes(),
            logprobs=np.array(sequence.logprobs, dtype="<f4").tobytes(),
        )
        if job.request.topk_sample_logprobs:
            sequence.close_span(Version(0))
            columns = sequence.generation(job.ended[sequence]).columns
            ids, logprobs = columns[TokenColumn.TOP_TOKENS], columns[TokenColumn.TOP_LOGPROBS]
            sampled.topk_sampled_logprobs.CopyFrom(_topk(ids, logprobs.astype(np.float32)))
    top = job.request.topk_prompt_logprobs
    if job.request.prompt_logprobs or top:
        logprobs, likely = _prompt_scores(job.prompt, base, top=top)
        if job.request.prompt_logprobs:
            response.prompt_logprobs = logprobs.astype("<f4").tobytes()
        if top:
            response.topk_prompt_logprobs.CopyFrom(_topk(*likely))
    return response.SerializeToString()


def _topk(ids: Int64Array, logprobs: Float32Array) -> pb.TopkLogprobs:
    order = np.argsort(-logprobs, axis=1, kind="stable")
    return pb.TopkLogprobs(
        token_ids=np.take_along_axis(ids, order, 1).astype("<i4").tobytes(),
        logprobs=np.take_along_axis(logprobs, order, 1).astype("<f4").tobytes(),
        k=ids.shape[1],
        length=ids.shape[0],
    )


def _prompt_scores(
    prompt: Int32Array, base: SharedBase, *, top: int
) -> tuple[Float32Array, tuple[Int64Array, Float32Array]]:
    """Returns the logprob of each token of the prompt, `[n]`, and the `top` most likely tokens in its place with their
    logprobs, `[n, top]`; the first token has none."""
    count = len(prompt)
    logprobs = np.full(count, np.nan, dtype=np.float32)
    ids, likely = np.zeros((count, top), dtype=np.int64), np.full((count, top), _NO_LOGPROB, dtype=np.float32)
    if count > 1:
        pack = replace(pack_sequences([prompt], [1]), top=top)
        scores = base.scorer.eval()(base.scorer.inputs(pack))
        logprobs[1:] = scores.logprobs.float().cpu().numpy()
        if top:
            ids[1:], likely[1:] = scores.top_tokens.cpu().numpy(), scores.top_logprobs.float().cpu().numpy()
    return logprobs, (ids, likely)
