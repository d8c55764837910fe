"""The web process under load: thousands of nodes that report once a second, and hundreds of browsers."""
