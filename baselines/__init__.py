"""Other ways to serve the same algorithms: how their released code does it, and what a standard server allows."""
