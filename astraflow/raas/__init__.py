"""The rollout role: lease tasks, turn them into episodes, follow the weights."""
