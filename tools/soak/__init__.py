"""Thousands of clients for many minutes, good and bad ones, and what the server still holds when all have gone."""
