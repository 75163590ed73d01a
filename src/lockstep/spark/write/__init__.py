"""What Spark writes to queues: rows, staged by tasks and pushed by one commit."""
