"""Commands that administer users, shares, sessions and files."""
