"""The data role: issues tasks, stores their results, serves batches to trainers, and reports measurements."""
