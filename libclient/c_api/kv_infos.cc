// SPDX-License-Identifier: Apache-2.0
// What is told of a KV space for C. Structured bindings name every field of the C++ structs: one that is added
// there does not compile here until it is told.
#include <utility>
#include <vector>

#include "libclient/c_api/call.h"
#include "libclient/c_api/kv.h"

using namespace terrace;
using namespace terrace::c_api;

namespace {

terrace_kv_block_info kv_block_in_c(const KvBlockInfo& of) {
  const auto& [name_space, key, bytes, part, expires_unix_s, used_unix_s, has_parent, has_checksum, member] =
      of;
  return {.size = sizeof(terrace_kv_block_info),
          .name_space = name_space.c_str(),
          .key = key.data(),
          .key_bytes = key.size(),
          .bytes = bytes,
          .expires_unix_s = expires_unix_s,
          .used_unix_s = used_unix_s,
          .part = part,
          .has_parent = has_parent ? 1 : 0,
          .has_checksum = has_checksum ? 1 : 0,
          .member = member};
}

terrace_kv_part_info kv_part_in_c(const KvPartInfo& of) {
  const auto& [part, host, state, blocks, block_bytes, chunk_bytes, member] = of;
  return {.size = sizeof(terrace_kv_part_info),
          .host = host,
          .blocks = blocks,
          .block_bytes = block_bytes,
          .chunk_bytes = chunk_bytes,
          .state = state.c_str(),
          .part = part,
          .member = member};
}

terrace_kv_member_info kv_member_in_c(const KvMemberInfo& of) {
  const auto& [where, state, loss, data_bytes, free_bytes, blocks, block_bytes, older_policy] = of;
  return {.size = sizeof(terrace_kv_member_info),
          .where = where.c_str(),
          .state = state.c_str(),
          .loss = loss.c_str(),
          .data_bytes = data_bytes,
          .free_bytes = free_bytes,
          .blocks = blocks,
          .block_bytes = block_bytes,
          .older_policy = older_policy ? 1 : 0};
}

// What a thread was last told, with all that the struct for C points to.
template <typename Told, typename Item>
struct KvTold {
  Told told;
  std::vector<Item> items;
  std::vector<const Item*> pointers;

  // items: of `told`, which stays where it is.
  template <typename From, typename InC>
  void point_to(const std::vector<From>& from, InC&& in_c) {
    items.clear();
    pointers.clear();
    items.reserve(from.size());
    for (const From& one : from) items.push_back(in_c(one));
    for (const Item& item : items) pointers.push_back(&item);
  }
};

KvTold<KvStat, terrace_kv_part_info>& kv_last_stat() {
  thread_local KvTold<KvStat, terrace_kv_part_info> last;
  return last;
}

// Of the stat that kv_last_stat() keeps.
KvTold<int, terrace_kv_member_info>& kv_last_members() {
  thread_local KvTold<int, terrace_kv_member_info> last;
  return last;
}

KvTold<KvVerified, terrace_kv_block_info>& kv_last_verified() {
  thread_local KvTold<KvVerified, terrace_kv_block_info> last;
  return last;
}

}  // namespace

extern "C" {

terrace_code terrace_kv_list(terrace_kv* kv, int (*each)(void* context, const terrace_kv_block_info* info),
                             void* context) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_list";
    TERRACE_C_NEED(where, kv);
    TERRACE_C_NEED(where, each);
    return kv->space->list([&](const KvBlockInfo& block) {
      const terrace_kv_block_info info = kv_block_in_c(block);
      return each(context, &info) == 0;
    });
  });
}

terrace_code terrace_kv_get_stat(terrace_kv* kv, terrace_kv_stat* stat) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_get_stat";
    TERRACE_C_NEED(where, kv);
    TERRACE_C_NEED(where, stat);
    TERRACE_ASSIGN_OR_RETURN(KvStat told, kv->space->stat());
    auto& last = kv_last_stat();
    last.told = std::move(told);
    const auto& [data_bytes, free_bytes, blocks, block_bytes, blocks_max, max_block_bytes, coherence, checksums,
                 parts, budgets, kept_bytes, local_blocks, local_bytes, local_max_bytes, members] = last.told;
    (void)budgets;  // terrace_kv_get_policy() has them
    last.point_to(parts, kv_part_in_c);
    auto& last_members = kv_last_members();
    last_members.point_to(members, kv_member_in_c);
    return give(stat,
                {.size = 0,
                 .data_bytes = data_bytes,
                 .free_bytes = free_bytes,
                 .blocks = blocks,
                 .block_bytes = block_bytes,
                 .blocks_max = blocks_max,
                 .max_block_bytes = max_block_bytes,
                 .coherence = static_cast<int>(coherence),
                 .checksums = checksums ? 1 : 0,
                 .parts = last.pointers.data(),
                 .part_count = last.pointers.size(),
                 .kept_bytes = kept_bytes,
                 .local_blocks = local_blocks,
                 .local_bytes = local_bytes,
                 .local_max_bytes = local_max_bytes,
                 .members = last_members.pointers.data(),
                 .member_count = last_members.pointers.size()},
                where);
  });
}

terrace_code terrace_kv_get_counters(const terrace_kv* kv, terrace_kv_counters* counters) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_get_counters";
    TERRACE_C_NEED(where, kv);
    TERRACE_C_NEED(where, counters);
    const auto [hits, misses, hit_bytes, puts, put_bytes, puts_refused, evicted, evicted_bytes, expired, erased,
                chunks_given, parts_adopted, spilled, spill_hits, spill_dropped, local_hits, local_hit_bytes,
                local_copied, local_evicted, local_stale, members_joined, members_lost] = kv->space->counters();
    return give(counters,
                {.size = 0,
                 .hits = hits,
                 .misses = misses,
                 .hit_bytes = hit_bytes,
                 .puts = puts,
                 .put_bytes = put_bytes,
                 .puts_refused = puts_refused,
                 .evicted = evicted,
                 .evicted_bytes = evicted_bytes,
                 .expired = expired,
                 .erased = erased,
                 .chunks_given = chunks_given,
                 .parts_adopted = parts_adopted,
                 .spilled = spilled,
                 .spill_hits = spill_hits,
                 .spill_dropped = spill_dropped,
                 .local_hits = local_hits,
                 .local_hit_bytes = local_hit_bytes,
                 .local_copied = local_copied,
                 .local_evicted = local_evicted,
                 .local_stale = local_stale,
                 .members_joined = members_joined,
                 .members_lost = members_lost},
                where);
  });
}

terrace_code terrace_kv_verify(terrace_kv* kv, terrace_kv_verified* verified) {
  return call([&]() -> Status {
    constexpr const char* where = "terrace_kv_verify";
    TERRACE_C_NEED(where, kv);
    TERRACE_C_NEED(where, verified);
    TERRACE_ASSIGN_OR_RETURN(KvVerified told, kv->space->verify());
    auto& last = kv_last_verified();
    last.told = std::move(told);
    const auto& [blocks, bytes, without_checksum, changed, wrong] = last.told;
    last.point_to(wrong, kv_block_in_c);
    return give(verified,
                {.size = 0,
                 .blocks = blocks,
                 .bytes = bytes,
                 .without_checksum = without_checksum,
                 .changed = changed,
                 .wrong = last.pointers.data(),
                 .wrong_count = last.pointers.size()},
                where);
  });
}

}  // extern "C"
