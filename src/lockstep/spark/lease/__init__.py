"""Streams that share a consumer group with ordinary consumers."""
