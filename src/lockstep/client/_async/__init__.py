"""The client for asyncio. `tools/generate-sync` generates the client for threads from it."""
