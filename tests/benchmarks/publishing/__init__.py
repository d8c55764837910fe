"""What publishing a version takes from the trainer, and what it takes beside it."""
