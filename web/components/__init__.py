"""Parts of pages that several features show: frame, texts with units, live texts, and common templates."""
