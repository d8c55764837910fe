"""Models behind one interface: the Messages API, chat completions endpoints, and a scripted (simulated) model."""
