"""The HTTP server: a raw ASGI application over an engine, and the processes that serve it."""
