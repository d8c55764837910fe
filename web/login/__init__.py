"""Login with a link, a password or an OpenID provider, and logout."""
