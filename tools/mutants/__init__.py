"""Mutants: damages that a judge must find. docs/judges.md says how many it finds."""
