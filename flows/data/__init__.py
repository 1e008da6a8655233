"""Data in and out of a home: imports, facts extracted from text, dataset and trace exports, and decontamination."""
