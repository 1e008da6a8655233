"""The command line, one module a family of commands. Heavy imports stay inside the commands: `--help` must answer at once."""
