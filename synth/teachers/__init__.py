"""Teachers: models behind a server, our own engines, or the graph's oracle, behind one interface; see `teacher`."""
