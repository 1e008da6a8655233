"""Generated worlds: people, companies, cities and films with names of known words, and a document each; and tasks of tool worlds."""
