"""The web console at `/console`: a page of static files, without a build step, that speaks the public protocols only."""
