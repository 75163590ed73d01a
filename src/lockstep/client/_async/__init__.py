"""The client for asyncio. The client for threads is generated from it by `tools/generate-sync`."""
