"""Preflights: asked for by people and commands, measured in stages, judged, and asked after."""
