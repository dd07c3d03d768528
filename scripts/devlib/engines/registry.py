# SPDX-License-Identifier: Apache-2.0
"""All engines, by name. A new one is a file beside this one and a line here."""

from devlib.engines.llama import LLAMA
from devlib.engines.llama_server import LLAMA_SERVER
from devlib.engines.lmcache import LMCACHE
from devlib.engines.mooncake import MOONCAKE
from devlib.engines.nixl import NIXL
from devlib.engines.redis import REDIS
from devlib.engines.sglang import SGLANG
from devlib.engines.vllm import VLLM
from devlib.engines.wheel import WHEEL

ENGINES = {
    engine.name: engine
    for engine in (LLAMA, LLAMA_SERVER, LMCACHE, MOONCAKE, NIXL, REDIS, SGLANG, VLLM, WHEEL)
}
