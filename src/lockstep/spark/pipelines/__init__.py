"""Pipelines: steps from queue to queue, each a function from DataFrame to DataFrame that runs as a streaming query."""
