"""The environment pool: worker processes on Ray, the circuit breaker that watches them, and Ray itself."""
