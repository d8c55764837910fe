"""docker-compose.yml in a real Docker Engine: `make containers`. docs/deploy.md says what it needs and what it checks."""
