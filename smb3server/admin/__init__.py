"""Both ends of the admin socket: what a running server answers on it, and how commands ask."""
