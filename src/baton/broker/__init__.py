"""Brokers: the local one that starts by itself, and the configuration of a production one."""
