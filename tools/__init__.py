"""Programs for developing and judging the project. None of them is installed with it."""
