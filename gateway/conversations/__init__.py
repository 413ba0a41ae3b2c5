"""Sessions for clients that send the whole conversation with each request, and know no session ids."""
