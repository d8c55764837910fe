"""Policies of a node: the engines that serve them, the weight loop that follows their versions, and pinned versions."""
