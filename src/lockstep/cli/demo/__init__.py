"""The demo: a shop whose orders go through a pipeline on Spark. `commands/demo.py` narrates it."""
