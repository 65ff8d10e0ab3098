"""Software iWARP: MPA (RFC 5044/6581), DDP (RFC 5041), RDMAP (RFC 5040) over TCP, in user space."""
