"""`flywheel plan`: estimate a configuration's resources before it runs."""
