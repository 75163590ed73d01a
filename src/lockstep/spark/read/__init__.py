"""What Spark reads from queues: positions, plans, and the segments as Arrow."""
