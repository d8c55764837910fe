"""The data role: hands out tasks, keeps what they produce, serves batches, and reports what it measures."""
