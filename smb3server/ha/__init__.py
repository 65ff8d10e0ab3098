"""High availability: durable handles, stores, cluster."""
