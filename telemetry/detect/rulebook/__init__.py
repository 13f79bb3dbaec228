"""The definitions of all rules, by what they look at: words, limits, and their PromQL."""
