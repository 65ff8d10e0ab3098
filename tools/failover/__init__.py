"""Simulated clients of the failover bench: thousands of them per process, each with as little work as possible."""
