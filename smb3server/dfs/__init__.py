"""DFS: namespaces, their links and targets, and the store of a namespace's share. [MS-DFSC]"""
