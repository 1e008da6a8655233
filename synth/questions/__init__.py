"""Questions: drawn as paths or grown by layers, proven, worded, graded, and separated from evaluation."""
