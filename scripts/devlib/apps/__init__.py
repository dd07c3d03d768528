# SPDX-License-Identifier: Apache-2.0
"""`scripts/dev apps`: unmodified real programs, plain and under `terrace run`, with the same results or not."""
