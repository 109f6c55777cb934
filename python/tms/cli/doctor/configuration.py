"""Checks of the configuration: the file and the environment, read exactly as the service reads
them."""
