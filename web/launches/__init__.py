"""Pages and endpoints that launch, stop and resume runs: forms from recipes, previews and logs."""
