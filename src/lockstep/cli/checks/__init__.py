"""The checks of `lockstep doctor`."""
