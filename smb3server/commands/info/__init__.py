"""info."""
