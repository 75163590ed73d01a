"""The client for threads, generated from the one for asyncio by `tools/generate-sync`, but for what says otherwise."""
