"""Families of causal models of the installed transformers, and the batchings that are exact for each."""
