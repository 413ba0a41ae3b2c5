"""What `portico doctor` finds out: the machine, the data directory, the daemon, and the agents. It changes none of them."""
