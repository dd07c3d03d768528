// SPDX-License-Identifier: Apache-2.0
// The engine's start: whose the memory is that is there, and what becomes of objects that no lease has.
//
// An object without a lease is destroyed only where it is certain that nobody was ever given it: a grant that a
// crash cut off before it was acknowledged. Everything else may be a tenant's memory of which this store knows
// nothing, because it is an older copy. That stays, and so does what a living process uses, until an operator says
// --destroy-orphans.

#include "core/base/failpoint.h"
#include "daemon/event_loop/engine.h"
#include "daemon/log/log.h"
#include "daemon/memory/remote/remote_memory.h"
#include "daemon/model/kinds.h"

namespace terrace::daemon {
namespace {

constexpr uint64_t leftover_pause_ns_max = 60 * ns_per_s;

bool never_used(const Image& image) {
  return image.devices.empty() && image.pools.empty() && image.leases.empty() && image.meta.next_lease == 1;
}

}  // namespace

// On the bulk worker, before anything is changed outside.
Status Engine::claim_memory(const Image& image) {
  if (!store_.id().valid()) return {};
  Status claimed = backend_.claim({.store = store_.id(),
                                   .owner = "state file " + options_.state_path,
                                   .remedy = "--state",
                                   .is_new = never_used(image),
                                   .take_over = destroy_orphans_});
  // A refusal comes before anything is written; what else fails may have claimed a part.
  memory_claimed_ = claimed.ok() || claimed.error().code != ErrorCode::invalid_argument;
  return claimed;
}

// On the bulk worker. Finds out why objects without a lease stay, by their names, and whether they show that the store is
// an older copy: an object loses the mark of one that nobody was given after its lease is durable.
void Engine::keep_orphans(Loaded& loaded) const {
  if (destroy_orphans_) return;  // an operator's word
  const Image& image = loaded.image;
  loaded.older_copy = image.meta.restored;
  std::set<std::string> known;
  for (const LeaseRow& lease : image.leases) known.insert({lease.object, lease.next_object});
  for (const ViewRow& view : image.views) known.insert(view.object);
  std::vector<const ObservedObject*> orphans;
  for (const ObservedObject& object : loaded.objects) {
    // One without bytes was fenced. Other hosts' objects are looked at when their agents register.
    const bool looked_at =
        !known.contains(object.name) && object.bytes != 0 && object_host(object.name).empty();
    if (looked_at) orphans.push_back(&object);
  }
  if (orphans.empty()) return;
  const ObjectUsers users = object_users_ ? object_users_(image) : ObjectUsers{};
  std::map<std::string, std::string>& kept = loaded.kept;
  for (const ObservedObject* orphan : orphans) {
    const auto used = users.by_object.find(orphan->name);
    if (used != users.by_object.end()) {
      kept[orphan->name] = "is used by " + used->second +
                           (orphan->handed_out ? "" : ", goes when that lets go, since nobody was granted it");
    } else if (orphan->handed_out) {
      kept[orphan->name] = "a tenant had it";
    } else if (!users.complete) {
      kept[orphan->name] = "not every process could be looked at";
    } else if (image.meta.restored) {
      kept[orphan->name] = "it may have been granted after the backup";
    }
    loaded.older_copy = loaded.older_copy || orphan->handed_out;
    if (!orphan->handed_out && !image.meta.restored && kept.contains(orphan->name))
      loaded.leftovers.insert(orphan->name);
  }
  if (!loaded.older_copy) return;
  // Kinds without such a mark: what is theirs may have been anybody's.
  for (const ObservedObject* orphan : orphans)
    if (memory_kind(object_kind(orphan->name)).held_by_device_node)
      kept.emplace(orphan->name, "it may have been granted after the store was what it is");
}

// On the bulk worker. An orphan that stays is in nobody's way: no lease will have its name, and the next start
// tries again.
void Engine::destroy_orphans(const std::vector<std::string>& orphans) {
  if (TERRACE_FAILPOINT(recover_before_orphans) != 0) return;
  for (const std::string& orphan : orphans) {
    Status status = backend_.fence(orphan);
    const auto scrubbed = backend_.scrub(orphan);
    if (status.ok() && !scrubbed.ok()) status = scrubbed.error();
    if (!status.ok()) log::error("object {} stays: {}", orphan, status.error().to_string());
  }
  [[maybe_unused]] const int armed = TERRACE_FAILPOINT(recover_after_orphans);
}

void Engine::watch_leftovers() {
  if (watching_leftovers_ || leftovers_.empty()) return;
  watching_leftovers_ = true;
  const auto pause = static_cast<int64_t>(leftover_pause_ns_) * kj::NANOSECONDS;
  leftover_pause_ns_ = std::min(2 * leftover_pause_ns_, leftover_pause_ns_max);
  tasks_.add(timer_.afterDelay(pause).then([this] { return remove_leftovers(); }).then([this] {
    watching_leftovers_ = false;
    watch_leftovers();
  }));
}

// Nobody can come to use one: without a lease it is opened for nobody.
kj::Promise<void> Engine::remove_leftovers() {
  if (refusing_) return kj::READY_NOW;  // the recovery looks at all objects
  Image devices;
  for (const auto& entry : state_->devices()) devices.devices.push_back(entry.second);
  return bulk_worker_
      .run([this, devices = std::move(devices), names = leftovers_]() -> std::vector<std::string> {
        const ObjectUsers users = object_users_ ? object_users_(devices) : ObjectUsers{};
        std::vector<std::string> gone;
        for (const std::string& name : names) {
          if (!users.complete || users.by_object.contains(name)) continue;
          if (backend_.fence(name).ok() && backend_.scrub(name).ok()) gone.push_back(name);
        }
        return gone;
      })
      .then([this](std::vector<std::string> gone) {
        for (const std::string& name : gone) {
          log::info("object {}, which nobody was granted, is not used any more: destroyed", name);
          leftovers_.erase(name);
        }
      });
}

}  // namespace terrace::daemon
