# SPDX-License-Identifier: Apache-2.0
"""Plug-ins of programs that serve models, a module each. A module imports its program; the package imports none of them."""
