"""Who did what, when and from where: sealed entries, how they are found, and how long they are kept."""
