"""Preflight: what was probed before scaling out, judged: whom to take, whom to leave."""
