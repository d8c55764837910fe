"""Server that speaks the Tinker API: tenants train LoRA adapters on shared base models, and sample from them, through
the official SDK."""
