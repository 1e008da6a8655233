"""Where environments run: worker processes on Ray, their health, and Ray itself."""
