"""Runs untrusted programs behind walls of the kernel's namespaces, under limits. `docs/sandbox.md` says what holds and what does not."""
