"""Environments of verifiers, as released, evaluate a policy over chat, and train it with tokens that they render.

`dial-codes` is beside this module. `glossary` is an environment in the repository of verifiers, which no package
contains: its tests run when it is installed in the environment of verifiers (docs/reference/agent-clients.md).
"""

import json
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from astraflow.models.huggingface_tokenizers import HuggingFaceTokenizer
from tests.agents.clients.environments import VERIFIERS, WHEELS
from tests.agents.clients.sessions import ClientSession, client_session
from tests.fakes.deciding_policy import DecidingPolicy, hermes_call

pytestmark = [pytest.mark.anyio, pytest.mark.clients, pytest.mark.timeout(600)]


def dials(prompt: str) -> str:
    """Asks the phone book for the country of the task, and answers with its code."""
    result = re.findall(r"\+\d+", prompt)
    if result:
        return f"The code is {result[-1]}."
    countries = re.findall(r"dial code of (\w+)\?", prompt)
    return hermes_call("phone_dial_code", country=countries[-1])


def facts(prompt: str) -> str:
    """Looks up the name of the task, and answers with the fact between tags."""
    results = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", prompt, re.DOTALL)
    if results:
        return f"<answer>{results[-1]}</answer>"
    names = re.findall(r'look up "([\w ]+)"', prompt)
    return hermes_call("facts_lookup", name=names[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """An environment, and a policy that solves its tasks."""

    package: str
    """Name of its module."""
    count: int
    reward: str
    """Name of its reward."""
    decide: Callable[[str], str]

    @property
    def is_installed(self) -> bool:
        """True if the environment of verifiers contains the module."""
        return any(VERIFIERS.folder.glob(f"lib/python*/site-packages/{self.package}"))


@pytest.fixture(
    params=[
        Tasks(package="dial_codes", count=4, reward="is_right", decide=dials),
        Tasks(package="glossary", count=5, reward="looked_up", decide=facts),
    ],
    ids=lambda tasks: tasks.package,
)
def tasks(request: pytest.FixtureRequest) -> Tasks:
    chosen: Tasks = request.param
    if chosen.package == "glossary" and not chosen.is_installed:
        pytest.skip("no package contains glossary: install it from the repository of verifiers")
    return chosen


async def evaluate(tasks: Tasks, session: ClientSession, folder: Path, *client: str) -> list[float]:
    """Runs `vf-eval` on all tasks; returns the rewards."""
    index = folder / "index"  # empty: uv takes the wheels and nothing else
    index.mkdir()
    await session.run(
        VERIFIERS.program("vf-eval"),
        tasks.package.replace("_", "-"),
        *("--model", "policy", "--client.api-key-var", "OPENAI_API_KEY", *client),
        *("--env.agent.runtime.type", "subprocess", "--output-dir", str(folder / "outputs"), "--no-push", "--no-rich"),
        folder=folder,
        home=folder,
        variables={
            "UV_FIND_LINKS": str(VERIFIERS.folder / WHEELS),
            "UV_DEFAULT_INDEX": index.as_uri(),
            "UV_PYTHON": sys.executable,
            "UV_PYTHON_DOWNLOADS": "never",
            "PATH": f"{VERIFIERS.folder / 'bin'}:/usr/bin:/bin",
        },
    )
    (traces,) = folder.glob("outputs/**/traces.jsonl")
    episodes = [json.loads(line) for line in traces.read_text().splitlines()]
    return [trace["rewards"][tasks.reward]["score"] for episode in episodes for trace in episode["traces"]]


async def test_evaluation_over_chat(tasks: Tasks, tmp_path: Path) -> None:
    async with client_session(DecidingPolicy(tasks.decide)) as session:
        url = session.access.environment["OPENAI_BASE_URL"]
        assert await evaluate(tasks, session, tmp_path, "--client.base-url", url) == [1.0] * tasks.count
        trajectories = session.trajectories(turns=[2] * tasks.count)
        assert {call.dialect for trajectory in trajectories for call in trajectory.calls} == {"chat"}


async def test_training_with_tokens(tasks: Tasks, tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer(tmp_path / "tokenizer")
    async with client_session(DecidingPolicy(tasks.decide, tokenizer=tokenizer)) as session:
        client = ["--client.type", "train", "--client.renderer.name", "qwen3"]
        client += ["--client.renderer-model-name", str(tmp_path / "tokenizer")]
        url = session.access.environment["OPENAI_BASE_URL"]
        assert await evaluate(tasks, session, tmp_path, "--client.base-url", url, *client) == [1.0] * tasks.count
        trajectories = session.trajectories(turns=[2] * tasks.count)
        assert {call.dialect for trajectory in trajectories for call in trajectory.calls} == {"tokens"}


def byte_level_tokenizer(folder: Path) -> HuggingFaceTokenizer:
    """Saves a tokenizer of bytes with the special tokens of Qwen3, for both sides, and returns it."""
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(BPE(vocab={byte: index for index, byte in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(
        [AddedToken(text, special=True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    )
    tags = ("think", "tool_call", "tool_response")
    core.add_tokens([AddedToken(form.format(tag), special=False) for tag in tags for form in ("<{}>", "</{}>")])
    saved = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    saved.chat_template = (
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    saved.save_pretrained(folder)
    end = core.token_to_id("<|im_end|>")
    assert end is not None
    return HuggingFaceTokenizer(saved, vocab_size=len(saved), stop_tokens=(end,))
