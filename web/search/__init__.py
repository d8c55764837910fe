"""Command palette, search page, keyboard shortcuts, and the menu of runs."""
