"""All settings, as plain values. Modules above receive them when they are constructed.

Reading order: ``server`` -> ``witness`` -> ``cluster`` -> ``store_url`` (the address of a cluster's store) ->
``store_access`` (credentials and secret for the store, loaded from the files that ``cluster`` names).
"""
