"""Parsers for what real nodes and training jobs send; units are converted here."""
