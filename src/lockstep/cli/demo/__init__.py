"""The demo: a shop with a Spark pipeline for its orders. `commands/demo.py` narrates it."""
