"""What a configuration will take before it runs: memory of each card, disk, tokens and time of a step, what holds it up."""
