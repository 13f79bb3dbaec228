"""What the API tells of each resource: a module per noun, every field with its meaning."""
