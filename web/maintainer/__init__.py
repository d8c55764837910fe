"""Page and endpoints of the maintainer: mode, proposals, budgets and transcript."""
