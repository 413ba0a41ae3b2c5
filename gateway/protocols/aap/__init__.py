"""AAP, the Agent Application Protocol: shapes, views of a turn, and one file a version for its paths."""
