"""The library: models that were pulled, referenced or created, by name, on this machine's disk.

`catalog.Library` reads and changes it, `locate.locate` finds any model by name (a path, a name of
the library, a bundled model, the hub), and `pull.pull` adds one from elsewhere. Nothing here
imports numpy; what needs the network is imported when something is pulled.
"""
