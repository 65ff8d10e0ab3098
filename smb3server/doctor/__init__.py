"""What ``smb3server doctor`` looks at: this machine, a configuration, the network, a share."""
