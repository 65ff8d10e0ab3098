"""Random operations on shared files by several clients; every answer is compared with a model. See ``__main__``."""
