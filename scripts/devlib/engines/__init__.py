# SPDX-License-Identifier: Apache-2.0
"""`engines`: programs that serve models, as they are released, on Terrace's memory."""
