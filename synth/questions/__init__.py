"""Questions: drawn as paths or grown by layers, proven, worded, graded, and kept apart from evaluation."""
