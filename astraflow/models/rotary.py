"""Rotary factors that do not depend on the batch.

Two rope types of transformers take other factors for long sequences than for short ones: `longrope` beyond the context
of pretraining, `dynamic` beyond the model's context. The longest sequence of a pack would decide for all of them, and
engines decide by their limit of the context. So the configuration gets one set of factors for the whole run, which the
trainer, nodes, engine servers and exports read.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from transformers import PretrainedConfig

_NAMES = ("rope_parameters", "rope_scaling")
"""Names in config.json: of transformers 5, and of earlier ones, which engines read too."""


def with_fixed_factors(config: PretrainedConfig, written: Mapping[str, Any], tokens: int | None) -> dict[str, Any]:
    """Returns the values of config.json with factors for sequences of this length, instead of those that depend on it;
    equal values for a model whose factors never do.

    config: read from `written`. tokens: longest sequence of the run; None: that of the model.
    """
    fixed = deepcopy(dict(written))
    text = fixed["text_config"] if isinstance(fixed.get("text_config"), dict) else fixed
    settings: Any = config.get_text_config()
    if not _depends_on_length(settings):
        return fixed
    limit: int = tokens or settings.max_position_embeddings
    for ropes in (text[name] for name in _NAMES if text.get(name)):
        for rope, standard in _ropes(ropes, settings.rope_parameters):
            kind = standard.get("rope_type")
            if kind == "longrope":
                length = "long" if limit > standard["original_max_position_embeddings"] else "short"
                for name in ("factor", "mscale"):  # the scale is that of PhiMoE
                    if f"long_{name}" in standard:
                        rope |= dict.fromkeys((f"short_{name}", f"long_{name}"), standard[f"{length}_{name}"])
            elif kind == "dynamic" and "alpha" not in standard:  # with alpha, factors are fixed up to the context
                base = _base(settings, standard, limit)
                rope.clear()
                rope |= {"rope_type": "default", "rope_theta": base}
                text |= {"max_position_embeddings": max(limit, settings.max_position_embeddings), "rope_theta": base}
    return fixed


def _depends_on_length(settings: PretrainedConfig) -> bool:
    parameters = getattr(settings, "rope_parameters", None) or {}
    return any(rope.get("rope_type") in ("longrope", "dynamic") for rope, _ in _ropes(parameters, parameters))


def _ropes(written: Any, standard: Any) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yields the values of each rope as written and as transformers reads them: of the model, or by type of layer."""
    if "rope_type" in standard:
        yield written, standard
        return
    for kind, values in standard.items():
        if isinstance(values, dict) and isinstance(written.get(kind), dict):
            yield written[kind], values


def _base(settings: PretrainedConfig, rope: Mapping[str, Any], tokens: int) -> float:
    """Returns the base of NTK scaling for sequences of this length.

    Source: transformers, `_compute_dynamic_ntk_parameters`.
    """
    head_size = getattr(settings, "head_dim", None) or settings.hidden_size // settings.num_attention_heads
    size = int(head_size * rope.get("partial_rotary_factor", 1.0))
    scaled = max(tokens, settings.max_position_embeddings) / settings.max_position_embeddings
    growth = rope["factor"] * scaled - (rope["factor"] - 1)
    return float(rope["rope_theta"] * growth ** (size / (size - 2)))
