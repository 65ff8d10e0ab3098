"""Several processes that serve the shares of one configuration.

Reading order: ``supervisor`` (starts the processes, and starts those anew that die) -> ``member`` (one of them: what it
serves, and where it leads clients for the rest) -> ``ownership`` (the file that says who serves what) -> ``asking``
(process 1 asks the others, so that one admin socket speaks for all) -> ``merging`` (their reports and metrics as one).
"""
