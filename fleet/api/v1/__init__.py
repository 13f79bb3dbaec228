"""The API: a router per resource, what they have in common, and the application of them all."""
