"""Generated worlds (people, companies, cities and films, one document each) and tasks of tool worlds."""
