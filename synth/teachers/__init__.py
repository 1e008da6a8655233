"""Teachers behind one interface (`teacher`): models on a server, local engines, or the graph oracle."""
