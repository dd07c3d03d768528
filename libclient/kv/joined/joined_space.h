// SPDX-License-Identifier: Apache-2.0
// JoinedKvSpace: one space of all members.
//
//   lookups   joined_lookups.cc: the member that a key prefers, then the others; many keys in batches for each
//   puts      joined_puts.cc: free room in any member, then the worst blocks of the preferred one
//   care      joined_care.cc: erase, flush, evict, policy; joined_show.cc: list, stat, verify, counters
//   look      joined_look.cc: the newest list, who comes and goes, what is lost, parts that others need
//   edit      joined_edit.cc: writing lists, grow; joined_shrink.cc: moving blocks, leaving
//
// Threads   Calls enter by the gate and use the set that current_ points to. Sets and members change under
//           look_mutex_, by the thread that looks or whoever edits, and go once no call and no view uses them.
#pragma once

#include <functional>
#include <map>
#include <thread>

#include "core/base/clock.h"
#include "core/base/sync/mutex.h"
#include "core/os/fork_mark.h"
#include "libclient/kv/joined/call_gate.h"
#include "libclient/kv/joined/member.h"
#include "terrace/kv_members.h"

namespace terrace::kv {

class JoinedSpace final : public JoinedKvSpace {
 public:
  JoinedSpace(std::string where, KvMembersOptions options)
      : where_(std::move(where)), options_(std::move(options)) {}
  ~JoinedSpace() override;
  // Errors    as JoinedKvSpace::attach
  Status begin(KvMemberMemory first);

  Status exists(const KvNamespace& name_space, std::span<const std::string_view> keys,
                std::span<bool> found) override;
  Result<uint64_t> prefix(const KvNamespace& name_space, std::span<const std::string_view> keys) override {
    return prefix_by_exists(*this, name_space, keys);
  }
  Result<uint64_t> get(const KvNamespace& name_space, const KvGet& get) override;
  std::vector<Result<uint64_t>> get_many(const KvNamespace& name_space, std::span<const KvGet> gets) override;
  Result<uint64_t> length(const KvNamespace& name_space, std::string_view key) override;
  Result<KvView> view(const KvNamespace& name_space, std::string_view key) override;
  Status put(const KvNamespace& name_space, const KvPut& put) override;
  std::vector<Status> put_many(const KvNamespace& name_space, std::span<const KvPut> puts) override;
  Result<KvWrite> begin_put(const KvNamespace& name_space, std::string_view key, uint64_t bytes,
                            const KvPutOptions& options) override;
  Status erase(const KvNamespace& name_space, std::string_view key, uint64_t wait_ns) override;
  Status list(const std::function<bool(const KvBlockInfo&)>& each) override;
  Result<KvStat> stat() override;
  KvCounters counters() const override;
  Result<KvVerified> verify() override;
  Result<uint64_t> evict(uint64_t bytes) override;
  Result<uint64_t> flush(const std::optional<KvNamespace>& name_space, uint64_t wait_ns) override;
  Result<KvPolicy> policy() override;
  Status set_policy(const KvPolicy& policy) override;
  void tend() override;
  std::optional<uint32_t> part() const override;
  Status health() const override;

  std::vector<KvMemberInfo> members() override;
  Status grow(const std::string& where) override;
  Result<KvShrunk> shrink(const std::string& where, uint64_t wait_ns) override;
  void look() override;

 protected:
  void unpin(uint32_t) override {}  // views hold the member's space

 private:
  using Entry = MemberSet::Entry;
  using Pass = CallGate::Pass;
  struct Missing {  // a listed member that is not mapped
    std::string loss;
    uint64_t again_at_ns = 0;
  };

  bool forked() const { return !process_.is_here(); }
  // seq_cst: behind Pass(); pairs with publish()
  const MemberSet& current() const { return *current_.load(std::memory_order_seq_cst); }
  bool spills() const { return options_.attach.spill != nullptr; }
  static Error refuse(ErrorCode code, std::string detail);
  static BlockKey key_of(const KvNamespace& name_space, std::string_view key) {
    return kv::key_of(namespace_hash(name_space.name()), key);
  }
  // Whether `error` says that a member's memory is gone, which is then known.
  bool lost_by(const Entry& entry, const Error& error) const;
  Error all_lost() const;

  // Lookups
  template <typename Ask>
  auto ask_each(const KvNamespace& name_space, std::string_view key, Ask ask)
      -> decltype(ask(std::declval<MemberKvSpace&>()));
  std::optional<size_t> place_of(const MemberSet& set, const BlockKey& key, size_t preferred);
  Status exists_in(const MemberSet& set, const KvNamespace& name_space, std::span<const std::string_view> keys,
                   std::span<bool> found);

  // Puts. `waited_ns`: of options.wait_ns, by all puts of one call.
  Result<KvWrite> begin(const KvNamespace& name_space, std::string_view key, uint64_t bytes,
                        const KvPutOptions& options, uint64_t* waited_ns);
  Status put_one(const KvNamespace& name_space, const KvPut& put, uint64_t* waited_ns);
  bool find_lost();
  bool may_put_into(const MemberSet& set, const Entry& entry, uint64_t now_ns) const;
  template <typename Begin>
  std::optional<Result<KvWrite>> try_to_begin(const MemberSet& set, const Entry& entry, Begin begin,
                                              std::optional<Error>* worst);

  // Looking
  void start_looking();
  void look_now() TERRACE_REQUIRES(look_mutex_);
  void learn_lists() TERRACE_REQUIRES(look_mutex_);
  void learn(const MemberList& list) TERRACE_REQUIRES(look_mutex_);
  void follow_list() TERRACE_REQUIRES(look_mutex_);
  std::shared_ptr<Member> mapped(const ListedMember& listed) TERRACE_REQUIRES(look_mutex_);
  Result<std::shared_ptr<Member>> map_member(const std::string& where, KvMemberMemory memory);
  void drop_lost() TERRACE_REQUIRES(look_mutex_);
  void give_parts() TERRACE_REQUIRES(look_mutex_);
  void repair_lists() TERRACE_REQUIRES(look_mutex_);
  static std::optional<PolicyText> newest_policy(const MemberSet& set);
  void repair_policies() TERRACE_REQUIRES(look_mutex_);
  void publish(std::vector<Entry> entries) TERRACE_REQUIRES(look_mutex_);
  void free_departed() TERRACE_REQUIRES(look_mutex_);

  // Editing
  static std::optional<MemberList> list_in(MemberKvSpace& space);
  static std::optional<MemberList> list_in_slot(MemberKvSpace& space, size_t slot);
  Status write_list(MemberKvSpace& space, MemberList list, uint64_t self) TERRACE_REQUIRES(look_mutex_);
  Status erase_list(MemberKvSpace& space, size_t slot) TERRACE_REQUIRES(look_mutex_);
  using Change = std::function<Status(MemberList&)>;
  Status edit(const Change& change, Member* fresh) TERRACE_REQUIRES(edit_mutex_);
  Status lock_lists(std::vector<Entry>* locked) TERRACE_REQUIRES(look_mutex_);
  static void unlock_lists(const std::vector<Entry>& locked);
  Status edit_locked(const Change& change, Member* fresh) TERRACE_REQUIRES(look_mutex_);
  Result<std::shared_ptr<Member>> new_member(const std::string& where) TERRACE_REQUIRES(edit_mutex_);
  Status give_policy(Member& fresh);
  Status move_blocks(Member& from, KvShrunk* shrunk);
  Status move_block(Member& from, const Block& block, KvShrunk* shrunk);
  uint32_t wait_for_holders(const std::string& where, uint64_t deadline_ns);
  Status check_has_left(const std::string& where);
  void wait_for_looks();
  void tend_members();

  const std::string where_;  // of the member that was attached first
  const KvMembersOptions options_;
  const os::ForkMark process_;
  SystemClock clock_;
  bool owns_ = true;  // false: the first member was given without an ownership source
  mutable CallGate gate_;
  std::atomic<const MemberSet*> current_ = nullptr;

  Mutex edit_mutex_;  // before look_mutex_
  mutable Mutex look_mutex_;
  MemberList list_ TERRACE_GUARDED_BY(look_mutex_);
  std::map<uint64_t, Missing> missing_ TERRACE_GUARDED_BY(look_mutex_);  // by id
  std::unique_ptr<const MemberSet> set_held_ TERRACE_GUARDED_BY(look_mutex_);
  std::vector<std::unique_ptr<const MemberSet>> retired_ TERRACE_GUARDED_BY(look_mutex_);
  std::vector<std::shared_ptr<Member>> departed_ TERRACE_GUARDED_BY(look_mutex_);
  KvCounters departed_counters_ TERRACE_GUARDED_BY(look_mutex_);
  std::atomic<uint64_t> look_at_ns_ = 0;

  mutable std::atomic<uint64_t> misses_ = 0, refused_twice_ = 0, members_joined_ = 0, members_lost_ = 0;

  // As KvSpaceOf::Tender.
  struct Looker {
    Mutex mutex;
    ConditionVariable wakes;
    bool ends TERRACE_GUARDED_BY(mutex) = false;
    std::thread thread;
  };
  std::unique_ptr<Looker> looker_;
};

}  // namespace terrace::kv
