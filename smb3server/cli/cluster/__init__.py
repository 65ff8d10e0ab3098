"""Commands about a cluster and its witness."""
