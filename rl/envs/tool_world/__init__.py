"""Tool worlds, and the domains that come with them."""
