# SPDX-License-Identifier: Apache-2.0
"""`scripts/dev demo`: the main job, with real programs and real files on an emulated pool."""
