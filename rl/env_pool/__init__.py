"""Environment pool: worker processes on Ray, the circuit breaker, and the machines available to Ray."""
