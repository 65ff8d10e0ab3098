"""Whole clusters on one machine: etcd, nodes and clients as processes, in network namespaces.

``lab.ClusterLab`` combines ``network`` (a bridge and namespaces), ``etcd`` (members) and ``node`` (servers).
"""
