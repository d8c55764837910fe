"""Parts of routes that several features use: context, lookups, redirects, caches, and fleet commands."""
