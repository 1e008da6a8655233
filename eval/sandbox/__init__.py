"""Runs untrusted programs isolated by the kernel's namespaces, under limits. `docs/sandbox.md` says what holds and what does not."""
