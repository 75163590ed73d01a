"""One module per client library: how it pushes, and how it consumes. `drive.py` runs them."""
