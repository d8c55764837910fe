"""How it is encoded: protos, codecs both ways, channels, servers and the one table of errors."""
