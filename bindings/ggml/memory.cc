// SPDX-License-Identifier: Apache-2.0
#include "bindings/ggml/memory.h"

#include <algorithm>
#include <memory>
#include <new>

namespace terrace::plugin {
namespace {

// Beside the first buffer, for the smaller ones that follow it, and for granules by which places are traded.
constexpr uint64_t reserve_bytes_min = 64ull << 20;
uint64_t reserve_for(uint64_t bytes) {
  return std::max(reserve_bytes_min, bytes / 8);
}

int hint_of(Kind kind) {
  switch (kind) {
    case Kind::weights: return TERRACE_HINT_WEIGHTS;
    case Kind::kv_cache: return TERRACE_HINT_KV_CACHE;
    case Kind::compute: return TERRACE_HINT_ACTIVATIONS;
  }
  return TERRACE_HINT_NONE;
}

void report_notice(const terrace_notice* notice, void*) {
  const std::string lease = "lease " + std::to_string(notice->lease);
  const std::string why = notice->reason[0] != '\0' ? notice->reason : notice->cause;
  if (notice->state == TERRACE_LEASE_REVOKING)
    complain(lease + " is taken back in " + std::to_string(notice->grace_ns / 1'000'000'000) + " s: " + why);
  else if (notice->state == TERRACE_LEASE_LOST)
    complain(lease + " is gone (" + why + "): what is computed from it ends with SIGBUS");
}

}  // namespace

const char* kind_name(Kind kind) {
  switch (kind) {
    case Kind::weights: return "weights";
    case Kind::kv_cache: return "the KV cache";
    case Kind::compute: return "computing";
  }
  return "";
}

std::string Memory::open(const Settings& settings) {
  settings_ = settings;
  const MutexLock lock(mutex_);
  terrace_session_options options{};
  options.size = sizeof options;
  options.client_name = "ggml";
  if (terrace_session_connect(&options, &session_) != TERRACE_OK) return terrace_error_text();
  terrace_session_on_notice(session_, report_notice, nullptr);
  return {};
}

void Memory::close() {
  const MutexLock lock(mutex_);
  terrace_session_free(session_);
  session_ = nullptr;
}

terrace_code Memory::make_lease(uint64_t bytes, terrace_lease** lease) {
  if (!settings_.lease.empty()) return terrace_lease_attach(session_, 0, settings_.lease.c_str(), 0, lease);
  terrace_lease_request request{};
  request.size = sizeof request;
  request.pool = settings_.pool.empty() ? nullptr : settings_.pool.c_str();
  request.bytes = bytes;
  request.label = settings_.label.empty() || !parts_.empty() ? nullptr : settings_.label.c_str();
  return terrace_lease_grant(session_, &request, lease);
}

// The first one has the DDR, and a lease for what of `bytes` does not fit there; later ones are for `bytes` alone.
bool Memory::make_part(uint64_t bytes, std::string& why) {
  Part part;
  part.ddr_bytes = parts_.empty() ? settings_.ddr_bytes : 0;
  uint64_t lease_bytes = settings_.cxl_bytes;
  // Half of DDR is left to what is smaller and hotter than weights.
  if (lease_bytes == 0 && bytes > part.ddr_bytes / 2)
    lease_bytes = bytes - part.ddr_bytes / 2 + reserve_for(bytes);
  if ((lease_bytes > 0 || !settings_.lease.empty()) && make_lease(lease_bytes, &part.lease) != TERRACE_OK) {
    why = std::string("no lease for it: ") + terrace_error_text();
    return false;
  }
  terrace_pool_options options{};
  options.size = sizeof options;
  options.session = session_;
  options.name = "ggml";
  options.ddr_bytes = part.ddr_bytes;
  options.guard_wait = settings_.guard_wait;
  options.ignore_steps = settings_.steps ? 0 : 1;
  if (terrace_pool_make(&options, &part.lease, part.lease != nullptr ? 1 : 0, &part.pool) != TERRACE_OK) {
    why = std::string("no pool over it: ") + terrace_error_text();
    drop(part);
    return false;
  }
  if (settings_.verbose)
    complain("a pool of " + size_text(part.ddr_bytes) + " of DDR and " +
             size_text(terrace_lease_bytes(part.lease)) + " of lease " +
             std::to_string(terrace_lease_id(part.lease)));
  parts_.push_back(part);
  return true;
}

void Memory::drop(Part& part) {
  terrace_pool_free(part.pool);
  // A lease that was there is somebody's; also otherwise it goes with its last handle, at once when released.
  if (part.lease != nullptr && settings_.lease.empty()) terrace_lease_release(part.lease);
  terrace_lease_free(part.lease);
}

terrace_code Memory::create(Part& part, uint64_t bytes, Kind kind, Block& block) {
  terrace_tensor_spec spec{};
  spec.size = sizeof spec;
  spec.dtype = TERRACE_DTYPE_U8;
  spec.rank = 1;
  spec.dimensions = &bytes;
  spec.hint = hint_of(kind);
  const terrace_code code = terrace_pool_create(part.pool, &spec, &block.tensor);
  if (code != TERRACE_OK) return code;
  block.part = &part;
  block.base = static_cast<std::byte*>(terrace_tensor_data(block.tensor));
  // Every operation reads and writes here. Where that is too much of DDR, its use decides.
  if (kind == Kind::compute && bytes <= part.ddr_bytes / 2)
    terrace_tensor_pin(block.tensor, TERRACE_TIER_DDR, nullptr);
  ++part.blocks;
  return TERRACE_OK;
}

Block* Memory::allocate(uint64_t bytes, Kind kind) {
  const MutexLock lock(mutex_);
  std::string why = "no manager is connected";
  std::unique_ptr<Block> block(new (std::nothrow) Block);
  if (block == nullptr) return nullptr;
  block->bytes = bytes;
  block->kind = kind;
  for (Part& part : parts_) {
    if (create(part, bytes, kind, *block) == TERRACE_OK) return block.release();
    why = terrace_error_text();
  }
  const bool bounded = settings_.cxl_bytes > 0 || !settings_.lease.empty();
  if (session_ != nullptr && (parts_.empty() || !bounded) && make_part(bytes, why)) {
    if (create(parts_.back(), bytes, kind, *block) == TERRACE_OK) return block.release();
    why = terrace_error_text();
    drop(parts_.back());
    parts_.pop_back();
  }
  std::string bound;
  if (!settings_.lease.empty())
    bound = "; TERRACE_GGML_LEASE=" + settings_.lease + " is all it may use: take a larger one";
  if (settings_.cxl_bytes > 0)
    bound =
        "; TERRACE_GGML_CXL=" + size_text(settings_.cxl_bytes) + " is all it may lease: raise it, or unset it";
  complain("no " + size_text(bytes) + " for " + kind_name(kind) + ": " + why + bound);
  return nullptr;
}

void Memory::free(Block* block) {
  if (block == nullptr) return;
  {
    const MutexLock lock(block->views_mutex);
    for (const auto& [place, view] : block->views) terrace_tensor_free(view);
  }
  terrace_tensor_free(block->tensor);
  const MutexLock lock(mutex_);
  if (Part* part = block->part; part != nullptr && --part->blocks == 0) {
    drop(*part);
    parts_.remove_if([&](const Part& one) { return &one == part; });
  }
  delete block;
}

uint64_t Memory::grantable_bytes() {
  terrace_pool_infos* infos = nullptr;
  if (session_ == nullptr || terrace_session_pools(session_, &infos) != TERRACE_OK) return 0;
  uint64_t bytes = 0;
  for (size_t i = 0; i < terrace_pool_infos_count(infos); ++i) {
    terrace_pool_info info{};
    info.size = sizeof info;
    if (terrace_pool_infos_get(infos, i, &info) == TERRACE_OK &&
        (settings_.pool.empty() || settings_.pool == info.name))
      bytes += info.grantable_bytes;
  }
  terrace_pool_infos_free(infos);
  return bytes;
}

void Memory::figures(uint64_t& free_bytes, uint64_t& all_bytes) {
  const MutexLock lock(mutex_);
  free_bytes = all_bytes = 0;
  for (const Part& part : parts_) {
    terrace_pool_statistics statistics{};
    statistics.size = sizeof statistics;
    if (terrace_pool_get_statistics(part.pool, &statistics) != TERRACE_OK) continue;
    free_bytes += statistics.free_bytes;
    all_bytes += statistics.capacity_bytes;
  }
  uint64_t to_come = parts_.empty() ? settings_.ddr_bytes : 0;
  if (settings_.cxl_bytes == 0 && settings_.lease.empty()) to_come += grantable_bytes();
  if (settings_.cxl_bytes > 0 && parts_.empty()) to_come += std::min(settings_.cxl_bytes, grantable_bytes());
  free_bytes += to_come;
  all_bytes += to_come;
}

}  // namespace terrace::plugin
