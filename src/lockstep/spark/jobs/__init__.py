"""Jobs over more messages than a consumer should look at, each a function, a command and a page in the docs."""
