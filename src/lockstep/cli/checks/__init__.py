"""What `lockstep doctor` looks at."""
