"""Authentication and authorization: tokens and keys (authentication.py), and an engine that checks rights
(guard.py)."""
