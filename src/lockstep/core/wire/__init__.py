"""The bodies and answers of the HTTP routes, and their conversion to our records and back."""
