"""One module or folder a protocol; nothing else knows its paths or shapes."""
