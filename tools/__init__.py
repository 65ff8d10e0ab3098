"""Programs for developing and judging the project: nothing here is installed with it."""
