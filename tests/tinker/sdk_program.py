"""Trains two tenants with the official SDK, pausing once: `python -m tests.tinker.sdk_program URL KEY KEY`.

Prints the losses of four steps and waits for a line; then prints, as one JSON object, what `test_sdk` compares.
"""

import importlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

tinker: Any = importlib.import_module("tinker")

TEXT = [5, 9, 13, 17, 21, 25]
RANKS = (4, 7)


def begin(url: str, key: str, rank: int) -> Any:
    service = tinker.ServiceClient(base_url=url, api_key=key)
    return service.create_lora_training_client(base_model="tiny", rank=rank, seed=rank).result()


def learn(client: Any, steps: int) -> list[float]:
    """Trains on one text; returns the losses."""
    inputs = {"target_tokens": np.array(TEXT[1:]), "weights": np.ones(5, dtype=np.float32)}
    datum = tinker.Datum(model_input=tinker.ModelInput.from_ints(TEXT[:-1]), loss_fn_inputs=inputs)
    losses = []
    for _ in range(steps):
        passes = client.forward_backward([datum], "cross_entropy")
        step = client.optim_step(tinker.AdamParams(learning_rate=0.02))
        losses.append(passes.result().metrics["loss:sum"])
        step.result()
    return losses


def main(url: str, *keys: str) -> None:
    clients = [begin(url, key, rank) for key, rank in zip(keys, RANKS, strict=True)]
    with ThreadPoolExecutor(2) as pool:
        before = list(pool.map(lambda client: learn(client, 4), clients))
    print("paused", flush=True)  # noqa: T201 (read by the test)
    sys.stdin.readline()
    after = [learn(client, 4) for client in clients]
    alone = [learn(begin(url, key, rank), 8) for key, rank in zip(keys, RANKS, strict=True)]
    sampler = clients[0].save_weights_and_get_sampling_client().result()
    greedy = tinker.SamplingParams(max_tokens=3, temperature=0.0)
    samples = sampler.sample(tinker.ModelInput.from_ints(TEXT[:3]), num_samples=2, sampling_params=greedy).result()
    results = {
        "together": [first + second for first, second in zip(before, after, strict=True)],
        "alone": alone,
        "samples": [sequence.tokens for sequence in samples.sequences],
        "scored": sampler.compute_logprobs(tinker.ModelInput.from_ints(TEXT)).result(),
        "loss": learn(clients[0], 1)[0],
    }
    print(json.dumps(results), flush=True)  # noqa: T201 (the same)


if __name__ == "__main__":
    main(*sys.argv[1:])
