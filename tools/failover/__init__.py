"""Simulated clients of the failover bench: thousands of them in a process, each with as little work as possible."""
