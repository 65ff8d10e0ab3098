"""DFS: namespaces, their links and targets, and the store of a namespace's share. [MS-DFSC]

Reading order: ``namespace`` (plain data, and the order of targets) -> ``store`` (the folders that clients see).
"""
