"""Sizes of the parts of layers that keep a recurrent state instead of keys and values. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """Sizes of the part of one layer with a recurrent state, whose size does not depend on the length of a sequence."""

    projections: tuple[tuple[str, int, int], ...]
    """Linear layers: name, inputs, outputs."""
    other_parameters: int
    """Parameters of convolution, gates and norm."""
    heads: int
    """Heads of the recurrence; 0: a convolution alone."""
    state_elements: int
    """Recurrent state of a sequence, which engines keep in float32."""
    convolution_elements: int
    """Inputs of the convolution that are kept of a sequence."""

    @property
    def parameters(self) -> int:
        """Parameters of the part."""
        return sum(inputs * outputs for _, inputs, outputs in self.projections) + self.other_parameters

    @property
    def width(self) -> int:
        """Outputs of all linear layers."""
        return sum(outputs for _, _, outputs in self.projections)


def delta_rule(
    hidden: int, *, key_heads: int, value_heads: int, key_head: int, value_head: int, kernel: int
) -> StateShape:
    """Returns the sizes of a gated delta rule, as in Qwen3.5."""
    values = value_heads * value_head
    mixed = 2 * key_heads * key_head + values
    return StateShape(
        projections=(
            ("in_proj_qkv", hidden, mixed),
            ("in_proj_z", hidden, values),
            ("in_proj_b", hidden, value_heads),
            ("in_proj_a", hidden, value_heads),
            ("out_proj", values, hidden),
        ),
        other_parameters=mixed * kernel + 2 * value_heads + value_head,
        heads=value_heads,
        state_elements=values * key_head,
        convolution_elements=mixed * kernel,
    )


def state_space(hidden: int, *, inner: int, heads: int, groups: int, state: int, kernel: int) -> StateShape:
    """Returns the sizes of a state space (Mamba 2), as in Falcon-H1."""
    mixed = inner + 2 * groups * state
    return StateShape(
        projections=(("in_proj", hidden, inner + mixed + heads), ("out_proj", inner, hidden)),
        other_parameters=mixed * (kernel + 1) + 3 * heads,
        heads=heads,
        state_elements=inner * state,
        convolution_elements=mixed * kernel,
    )


def short_convolution(hidden: int, *, kernel: int) -> StateShape:
    """Returns the sizes of a gated short convolution, as in LFM2."""
    return StateShape(
        projections=(("in_proj", hidden, 3 * hidden), ("out_proj", hidden, hidden)),
        other_parameters=hidden * kernel,
        heads=0,
        state_elements=0,
        convolution_elements=hidden * kernel,
    )


def state_values(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a `ModelShape` for the layers with a state of a configuration; none without such layers."""
    types, hidden, layers = config.get("layer_types") or (), config["hidden_size"], config.get("num_hidden_layers") or 0
    match config.get("model_type"):
        case "qwen3_5_text" | "qwen3_5_moe_text":
            state = delta_rule(
                hidden,
                key_heads=config["linear_num_key_heads"],
                value_heads=config["linear_num_value_heads"],
                key_head=config["linear_key_head_dim"],
                value_head=config["linear_value_head_dim"],
                kernel=config["linear_conv_kernel_dim"],
            )
            every = config.get("full_attention_interval") or 4
            return {
                "state": state,
                "state_layers": types.count("linear_attention") if types else layers - layers // every,
                "has_output_gate": True,
            }
        case "lfm2":
            state = short_convolution(hidden, kernel=config["conv_L_cache"])
            return {"state": state, "state_layers": types.count("conv")}
        case "falcon_h1":
            state = state_space(
                hidden,
                inner=config.get("mamba_d_ssm") or config["mamba_expand"] * hidden,
                heads=config["mamba_n_heads"],
                groups=config["mamba_n_groups"],
                state=config["mamba_d_state"],
                kernel=config["mamba_d_conv"],
            )
            return {"state": state, "state_layers": layers, "has_attention_beside_state": True}
    return {}
