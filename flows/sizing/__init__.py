"""`flywheel plan`: what a configuration will take before it runs."""
