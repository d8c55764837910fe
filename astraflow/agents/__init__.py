"""Agent programs as rollouts: a proxy that answers their model calls with policies, and the exact tokens of each."""
