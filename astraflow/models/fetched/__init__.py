"""Models that `astraflow fetch` brought: the kind of model, packages of pip's index, and conversion of GGUF."""
