"""Golden tests of the documents that the gateway was made for. Changes of the gateway do not edit them: see README.md."""
