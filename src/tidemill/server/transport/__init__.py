"""HTTP and TLS: connections, request bodies on the wire, and written answers."""
