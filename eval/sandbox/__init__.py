"""Run untrusted programs in kernel namespaces with resource limits. `docs/sandbox.md` describes the guarantees and their limits."""
