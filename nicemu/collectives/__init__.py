"""What ranks call, and what comes of it."""
