"""One module or package per protocol. Nothing outside of it knows its paths and message formats."""
