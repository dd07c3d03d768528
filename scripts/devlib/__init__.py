# SPDX-License-Identifier: Apache-2.0
"""What scripts/dev is made of: one module a family of verbs, main.py ties them together."""
