"""Commands of the admin socket, and what they do."""
