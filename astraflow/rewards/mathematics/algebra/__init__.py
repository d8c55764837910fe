"""Expressions: their parser, bounded evaluation and equality."""
