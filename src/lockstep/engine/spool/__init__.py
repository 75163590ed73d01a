"""A durable log on this machine's disk, for pushes that cannot reach the store now. Synchronous, and without a
clock."""
