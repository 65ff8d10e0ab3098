"""What other tools and tests share: servers in processes of their own, clients that mean well, users, file systems."""
