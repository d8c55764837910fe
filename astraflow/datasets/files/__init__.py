"""Prompts from the files of a user: JSON lines, Parquet, and datasets of the Hugging Face library."""
