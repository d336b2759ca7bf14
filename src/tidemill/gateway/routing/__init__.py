"""Where a request goes: pure rules over facts. No clock, no socket, no server in here."""
