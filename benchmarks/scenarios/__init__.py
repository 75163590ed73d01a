"""What the core benchmark measures, one file per subject."""
