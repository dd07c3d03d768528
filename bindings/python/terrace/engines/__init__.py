# SPDX-License-Identifier: Apache-2.0
"""Adapters of engines that serve models; each module imports its engine."""
