"""Encoding and transport: protos, codecs in both directions, channels, servers and the error table."""
