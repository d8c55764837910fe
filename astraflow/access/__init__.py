"""Authentication and authorization: roles, credentials, and the run's own certificate authority."""
