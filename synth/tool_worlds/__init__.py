"""Tasks in tool worlds: goals strung together, each with the calls that reach it."""
