# Filled in by the module owners: daemon, CLI, preload library, client library with its package files.
