"""Inference engines: vLLM in Ray actors, pools of engines, and weight transfer."""
