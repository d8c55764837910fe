"""docker-compose.yml in a real Docker Engine: `make containers`. See docs/how-to/deploy.md."""
