"""Language models and their tokenizers: a tiny one that runs anywhere, Hugging Face ones from local paths."""
