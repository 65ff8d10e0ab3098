"""Random operations on shared files by several clients, every answer compared with a model: see ``__main__``."""
