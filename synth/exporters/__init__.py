"""What the lake holds as datasets for others: texts for pre-training, messages for fine-tuning, prompts for reinforcement learning."""
