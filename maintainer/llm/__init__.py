"""Models behind one port: the Messages API, endpoints that speak chat completions, and a scripted stand-in."""
