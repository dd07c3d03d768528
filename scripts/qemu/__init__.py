# SPDX-License-Identifier: Apache-2.0
"""Guests with emulated CXL hardware: what a guest is made of, how it is booted, and the tests that run inside."""
