"""How a home is kept turning with nobody watching: attempts, budgets, events, schedules, and what Prefect shows."""
