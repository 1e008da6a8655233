"""The two processes that judge code, each in a sandbox of its own: one holds the tests, the other the candidate's program.

Their sources are copied into the sandboxes, so they import the standard library and each other alone.
"""
