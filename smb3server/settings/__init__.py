"""What can be set, as plain values that the machinery above is handed.

Reading order: ``server`` -> ``witness`` -> ``cluster`` -> ``store_url`` and ``store_access`` (how a cluster's store is
named, and what it is reached and sealed with, loaded from the files that ``cluster`` names).
"""
