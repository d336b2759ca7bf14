"""What outlives a server: keys, limits, usage, audit, batches, in SQLite or PostgreSQL.

Nothing on a request's path waits for it, and nothing of it is imported before the server is ready.
`Database` is the way in; each concern has a module of tables (`tables/`), one of functions over a
connection, and a revision in `migrations/`.
"""
