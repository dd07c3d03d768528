# SPDX-License-Identifier: Apache-2.0
"""Plug-ins of programs that serve models, each in a module of its own."""
