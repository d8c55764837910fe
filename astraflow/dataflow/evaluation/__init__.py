"""Evaluation: measures pinned versions during training. An evaluation is a flow that feeds no stream."""
