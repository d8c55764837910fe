"""Training engines: one model with its optimizer on one rank, under the same interface for one process and for many."""
