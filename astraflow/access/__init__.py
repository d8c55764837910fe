"""Who may do what: roles, what callers show, and the run's own certificate authority."""
