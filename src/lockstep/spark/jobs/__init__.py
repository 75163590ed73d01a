"""Jobs that process more messages than a consumer should, each a function, a command and a page in the docs."""
