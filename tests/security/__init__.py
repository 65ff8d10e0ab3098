"""What one user can, and cannot, do to others."""
