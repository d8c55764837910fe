"""The simulated set-up: two policies of eight billion parameters on eight GPUs, from one set of assumptions.

The published set-up (AstraFlow, arXiv:2605.15565): a solver and a verifier, each a Qwen3-8B, batch 256, groups of 8, at
most 4,096 new tokens, staleness 8, one host of eight GPUs: for each policy two that generate and two that train. It
takes 77.65 s an iteration, and a synchronous system on the same eight GPUs, used for both in turn, 212.64 s.

Assumptions, in seconds and tokens of that set-up, for GPUs like an H100:

- *Batch*: 256 episodes, 32 groups of 8. (256 groups would be four to six times the tokens that two such GPUs can train
  on in 77 s.)
- *Episodes*: solve, verify, and solve again if rejected. Both policies are right in 66 % of all cases, whatever they
  have learned; a reply that is cut off is wrong. So some 43 % of the answers are rejected. The length of every reply is
  lognormal with mean 1,500 tokens and sigma 1, cut off at 4,096; sigma is what the sensitivity table varies.
- *Generation*: a step of a decoding batch of n takes `decode_fixed_s + n * decode_request_s`. The part per request is
  arithmetic: 147 kB of keys and values a token (36 layers, 8 heads of 128, bf16) times 2,000 tokens of context at
  3.35 TB/s, and 16.4 GFLOP at half of 989 TFLOP/s: 0.12 ms. Memory for keys and values holds some 192 requests a GPU.
- *Training*: 40 % of 989 TFLOP/s on 8 FLOP a parameter and token (forward, backward, and the forward pass for proximal
  log-probabilities): 6,000 tokens/s a GPU; 1.5 tokens are read for each that was written (prompts, earlier answers).
- *Weights*: an engine that swaps in place pauses for 0.3 s. A GPU that changes from training to generating takes 12 s
  to move optimizer and weights; 12 to 14 s are published for reloading an engine.
- `decode_fixed_s` is the one free figure. It is chosen so that the *colocated synchronous* mode takes the published
  212.64 s, and stands for all that keeps a request from being written as fast as weights can be read (5 ms). Nothing
  is chosen with a view to the asynchronous mode: its engines, trainers and lengths are those of the others.

Compression: time runs `faster` times as fast, and one token stands for `tokens_in_one`. Episodes, requests, groups,
batches, versions and processes are as many as in the set-up. The real system's own time (leases, pushes, commits,
publishing, loading) is *not* compressed: a millisecond here counts as 50 there, against the system.
"""

from dataclasses import dataclass
from typing import Any

from astraflow.recipe.config import Recipe

SOLVER, VERIFIER = "solver", "verifier"
POLICIES = (SOLVER, VERIFIER)

PUBLISHED_SYNCHRONOUS_S, PUBLISHED_ASYNCHRONOUS_S = 212.64, 77.65


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The assumptions. Seconds and tokens are those of the original set-up unless stated otherwise."""

    batch_groups: int = 32
    group_size: int = 8
    max_staleness: int = 8
    """Limit of the asynchronous mode; the others have 0."""
    accuracy: float = 0.66
    mean_tokens: float = 1500.0
    sigma: float = 1.0
    max_tokens: int = 4096
    decode_fixed_s: float = 16.25e-3
    decode_request_s: float = 0.12e-3
    max_requests: int = 192
    """Requests per GPU."""
    episodes_at_once: int = 256
    """Episodes per node in the asynchronous mode: a solver GPU and a verifier GPU."""
    trained_per_gpu_s: float = 6000.0 / 1.5
    """Generated tokens a second that one GPU trains on."""
    swap_s: float = 0.3
    switch_s: float = 12.0
    faster: float = 50.0
    tokens_in_one: float = 8.0

    @property
    def episodes(self) -> int:
        """Episodes of one batch."""
        return self.batch_groups * self.group_size

    @property
    def full_tokens_per_s(self) -> float:
        """Tokens per second that one GPU generates with as many requests as it holds."""
        return self.max_requests / (self.decode_fixed_s + self.max_requests * self.decode_request_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """Assignment of the GPUs."""

    name: str
    label: str
    is_synchronous: bool
    is_colocated: bool = False
    """All GPUs generate, then all train."""

    @property
    def gpus(self) -> int:
        """GPUs of each policy for generation and for training."""
        return 4 if self.is_colocated else 2


ASYNCHRONOUS = Mode(name="asynchronous", label="asynchronous, 2+2 and 2+2", is_synchronous=False)
SYNCHRONOUS = Mode(name="synchronous", label="synchronous, 2+2 and 2+2", is_synchronous=True)
COLOCATED = Mode(name="colocated", label="synchronous, colocated, 4 and 4", is_synchronous=True, is_colocated=True)
MODES = (ASYNCHRONOUS, SYNCHRONOUS, COLOCATED)


def recipe(setting: Setting, mode: Mode, *, seed: int) -> Recipe:
    """Returns the recipe of the compressed run. A node has one generating GPU of each policy."""
    policy = {
        "model": {"kind": "scripted"},
        "batch_groups": setting.batch_groups,
        "max_staleness": 0 if mode.is_synchronous else setting.max_staleness,
        "backend": {
            "kind": "scripted",
            "step_s": 0.0,
            "step_sigma": 0.0,
            "token_s": setting.tokens_in_one / (setting.trained_per_gpu_s * mode.gpus * setting.faster),
        },
    }
    values = {
        "name": f"two-policies-{mode.name}",
        "seed": seed,
        "stop": {"steps": 1_000_000},
        "policies": dict.fromkeys(POLICIES, policy),
        "flows": {
            "train": {
                "dataset": {"kind": "scripted", "size": 40_000},
                "workflow": _workflow(setting),
                "reward": {"kind": "exact_match"},
                "group_size": setting.group_size,
                "when_full": "wait" if mode.is_synchronous else "shed",
            }
        },
        "nodes": {
            "count": mode.gpus,
            "capacity": setting.episodes // mode.gpus if mode.is_synchronous else setting.episodes_at_once,
            "text_share": 0.0,
            "engine": _engine(setting, mode, seed=seed),
        },
        "dataflow": {"heartbeat_s": 0.5, "report_s": 0.5},
    }
    return Recipe.parse(values, where="benchmark")


def _workflow(setting: Setting) -> dict[str, Any]:
    limit = round(setting.max_tokens / setting.tokens_in_one)
    return {
        "kind": "solve_and_verify",
        "solver": SOLVER,
        "verifier": VERIFIER,
        "max_new_tokens": limit,
        "verdict_max_new_tokens": limit,
    }


def _engine(setting: Setting, mode: Mode, *, seed: int) -> dict[str, Any]:
    alone_s = setting.decode_fixed_s + setting.decode_request_s
    pause_s = setting.switch_s if mode.is_colocated else setting.swap_s
    return {
        "kind": "scripted",
        "accuracy_start": setting.accuracy,
        "accuracy_gain": 0.0,
        "tokens": {"mean": setting.mean_tokens / setting.tokens_in_one, "spread": setting.sigma},
        "first_token_s": {"mean": 0.0},
        "tokens_per_s": setting.faster / (alone_s * setting.tokens_in_one),
        "half_speed_requests": alone_s / setting.decode_request_s,
        "swap_s": pause_s / setting.faster,
        "seed": seed,
    }
