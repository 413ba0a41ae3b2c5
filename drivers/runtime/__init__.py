"""What runs a codec: processes, pipes, process trees, time limits, and the requests that a CLI makes of its client."""
