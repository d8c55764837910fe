"""Domain types that services exchange: frozen dataclasses over the standard library and numpy."""
