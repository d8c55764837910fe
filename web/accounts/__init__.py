"""Who may come in, how, and as whom: users, their sessions and tokens, passwords, and a provider's login."""
