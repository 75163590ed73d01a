"""A durable log on this machine's disk, for pushes that cannot reach the store now. Sync, and without any clock."""
