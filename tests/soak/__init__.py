"""The long run: a real server, known streams, and somebody who breaks everything he can reach."""
