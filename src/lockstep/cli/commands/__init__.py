"""The commands, one module per noun or verb."""
