"""From what is known to what a page shows: texts with units, sentences, rows and shapes, ready for templates."""
