"""A soak of a cluster: three nodes, one PostgreSQL, and clients that connect to any node while nodes and the database fail."""
