"""Datasets for others: rows, a card that says where they come from, and files that the same snapshot gives again byte for byte."""
