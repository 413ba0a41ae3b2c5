"""The gateway's own API under `/v1`, beside the protocols: what an operator, a script or the console asks about the daemon."""
