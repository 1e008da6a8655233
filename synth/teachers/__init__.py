"""Teachers: models from elsewhere, our own engines, or the graph's oracle, behind one interface; see `teacher`."""
