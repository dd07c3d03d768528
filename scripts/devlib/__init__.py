"""What scripts/dev is made of: one module a family of verbs, main.py ties them together."""
