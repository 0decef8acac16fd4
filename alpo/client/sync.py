"""`connect_sync`: the same client for programs without an event loop; may be used from several threads."""
