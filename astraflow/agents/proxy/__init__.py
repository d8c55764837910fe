"""Proxy: the HTTP server on loopback through which agent programs call the models of their sessions."""
