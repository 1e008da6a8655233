"""Evaluation suites: defined by TOML, drawn, run through the engines, checked and reported."""
