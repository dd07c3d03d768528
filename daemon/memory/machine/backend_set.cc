// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/machine/backend_set.h"

#include <algorithm>
#include <map>

#include "daemon/memory/remote/remote_memory.h"

namespace terrace::daemon {

std::vector<KnownDevice> known_devices(const Image& image) {
  std::vector<KnownDevice> known;
  for (const DeviceRow& row : image.devices)
    known.push_back({row.id, row.serial, row.backend, row.capacity_bytes, row.granule_bytes});
  return known;
}

std::vector<KnownObject> known_objects(const Image& image) {
  std::vector<KnownObject> known;
  for (const LeaseRow& row : image.leases) {
    known.push_back({row.object, row.bytes, row.extents});
    if (!row.next_object.empty()) known.push_back({row.next_object, row.bytes, row.extents});
  }
  if (image.views.empty()) return known;
  std::map<LeaseId, const LeaseRow*> rows;
  for (const LeaseRow& row : image.leases) rows[row.id] = &row;
  for (const ViewRow& view : image.views)
    if (const auto row = rows.find(lease_of(view.id)); row != rows.end())
      known.push_back({view.object, row->second->bytes, row->second->extents});
  return known;
}

void BackendSet::add_remote(RemoteBackend& remote) {
  remote_ = &remote;
}

Backend* BackendSet::of_object(std::string_view name) const {
  if (!object_host(name).empty()) return remote_;
  const std::string_view kind = object_kind(name);
  for (Backend* backend : backends_)
    if (backend->kind() == kind) return backend;
  return nullptr;
}

Backend* BackendSet::of_device(const std::string& serial) const {
  for (Backend* backend : backends_)
    for (const SeenDevice& device : backend->discover())
      if (device.serial == serial) return backend;
  return nullptr;
}

Error BackendSet::no_such_kind(std::string_view name) const {
  return Error{.code = ErrorCode::unsupported,
               .where = "BackendSet",
               .detail = "this daemon has no memory of the kind of '" + std::string(name) +
                         "'; `terrace doctor` says which it has and why"};
}

// --- devices --------------------------------------------------------------------------------------------

std::vector<SeenDevice> BackendSet::discover() {
  std::vector<SeenDevice> all;
  for (Backend* backend : backends_) {
    std::vector<SeenDevice> some = backend->discover();
    all.insert(all.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  return all;
}

// All of them, whatever one says.
Status BackendSet::refresh() {
  Status first;
  for (Backend* backend : backends_) {
    Status looked = backend->refresh();
    const MutexLock lock(mutex_);
    if (looked.ok()) {
      unseen_.erase(std::string(backend->kind()));
    } else {
      unseen_.insert(std::string(backend->kind()));
      if (first.ok()) first = std::move(looked);
    }
  }
  return first;
}

bool BackendSet::saw_all(std::string_view backend) const {
  const MutexLock lock(mutex_);
  return !unseen_.contains(backend);
}

std::vector<SeenDevice> BackendSet::inspect() {
  std::vector<SeenDevice> all;
  for (Backend* backend : backends_) {
    std::vector<SeenDevice> some = backend->inspect();
    all.insert(all.end(), std::make_move_iterator(some.begin()), std::make_move_iterator(some.end()));
  }
  return all;
}

bool BackendSet::outlasts_absence(std::string_view backend) const {
  return std::any_of(backends_.begin(), backends_.end(), [backend](const Backend* one) {
    return one->kind() == backend && one->outlasts_absence(backend);
  });
}

TierAttributes BackendSet::attributes(const std::string& serial) const {
  for (const Backend* backend : backends_) {
    const TierAttributes found = backend->attributes(serial);
    if (found != TierAttributes{}) return found;
  }
  return {};
}

void BackendSet::know_devices(const std::vector<KnownDevice>& devices) {
  for (Backend* backend : backends_) {
    std::vector<KnownDevice> own;
    for (const KnownDevice& device : devices)
      if (device.backend == backend->kind()) own.push_back(device);
    backend->know_devices(own);
  }
  if (remote_ != nullptr) remote_->know_devices(devices);
}

void BackendSet::know_objects(const std::vector<KnownObject>& objects) {
  for (Backend* backend : backends_) {
    std::vector<KnownObject> own;
    for (const KnownObject& object : objects)
      if (of_object(object.name) == backend) own.push_back(object);
    backend->know_objects(own);
  }
  if (remote_ == nullptr) return;
  std::vector<KnownObject> elsewhere;
  for (const KnownObject& object : objects)
    if (!object_host(object.name).empty()) elsewhere.push_back(object);
  remote_->know_objects(elsewhere);
}

// This machine's: what is on other hosts is marked by their agents. Refused as a whole or not at all.
Status BackendSet::claim(const StoreClaim& claim) {
  StoreClaim check = claim;
  check.check_only = true;
  for (Backend* backend : backends_) TERRACE_RETURN_IF_ERROR(backend->claim(check));
  if (claim.check_only) return {};
  for (Backend* backend : backends_) TERRACE_RETURN_IF_ERROR(backend->claim(claim));
  return {};
}

Status BackendSet::hand_out(const std::string& name) {
  Backend* backend = of_object(name);
  return backend == nullptr ? Status(no_such_kind(name)) : backend->hand_out(name);
}

Status BackendSet::may_take_over(const std::string& serial) {
  Backend* backend = of_device(serial);
  return backend == nullptr ? Status(no_such_kind(serial)) : backend->may_take_over(serial);
}

Status BackendSet::take_over(const std::string& serial) {
  Backend* backend = of_device(serial);
  return backend == nullptr ? Status(no_such_kind(serial)) : backend->take_over(serial);
}

// Whichever kind can: the others say that they cannot.
Result<std::string> BackendSet::create_region(const RegionRequest& request) {
  for (Backend* backend : backends_) {
    if (backend->composition() == nullptr) continue;
    auto serial = backend->composition()->create_region(request);
    if (serial.ok() || serial.error().code != ErrorCode::unsupported) return serial;
  }
  return no_such_kind("memdevs");
}

// Whichever kind can: leases on a volatile region are of another kind than what composed it.
Status BackendSet::destroy_region(const std::string& serial) {
  for (Backend* backend : backends_) {
    if (backend->composition() == nullptr) continue;
    const Status destroyed = backend->composition()->destroy_region(serial);
    if (destroyed.ok() || destroyed.error().code != ErrorCode::unsupported) return destroyed;
  }
  return no_such_kind(serial);
}

Result<std::string> BackendSet::online(const std::string& serial) {
  for (Backend* backend : backends_) {
    if (backend->composition() == nullptr) continue;
    auto online = backend->composition()->online(serial);
    if (online.ok() || online.error().code != ErrorCode::unsupported) return online;
  }
  return no_such_kind(serial);
}

Status BackendSet::offline(const std::string& serial) {
  Backend* backend = of_device(serial);
  if (backend == nullptr || backend->composition() == nullptr) return no_such_kind(serial);
  return backend->composition()->offline(serial);
}

// --- objects --------------------------------------------------------------------------------------------

Status BackendSet::carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) {
  Backend* backend = of_object(name);
  if (backend == nullptr) return no_such_kind(name);
  if (remote_ != nullptr && backend != remote_ && lies_on_shared(*backend, name))
    TERRACE_RETURN_IF_ERROR(remote_->may_make_shared());
  return backend->carve(name, bytes, extents);
}

Result<UniqueFd> BackendSet::open(const std::string& name, ObjectAccess access) {
  Backend* backend = of_object(name);
  if (backend == nullptr) return no_such_kind(name);
  return backend->open(name, access);
}

Status BackendSet::fence(const std::string& name) {
  Backend* backend = of_object(name);
  return backend == nullptr ? Status(no_such_kind(name)) : backend->fence(name);
}

Result<uint64_t> BackendSet::scrub(const std::string& name) {
  Backend* backend = of_object(name);
  if (backend == nullptr) return no_such_kind(name);
  return backend->scrub(name);
}

bool BackendSet::erases_in_place(std::string_view name) const {
  const Backend* backend = of_object(name);
  return backend != nullptr && backend->erases_in_place(name);
}

Status BackendSet::erase(const std::string& name, const std::vector<Extent>& extents, uint64_t offset,
                         uint64_t length) {
  Backend* backend = of_object(name);
  return backend == nullptr ? Status(no_such_kind(name)) : backend->erase(name, extents, offset, length);
}

Status BackendSet::resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                          const std::vector<Extent>& extents) {
  Backend* backend = of_object(name);
  return backend == nullptr ? Status(no_such_kind(name)) : backend->resize(name, from_bytes, to_bytes, extents);
}

Status BackendSet::rebind(const std::string& from, const std::string& to, uint64_t bytes,
                          const std::vector<Extent>& extents) {
  if (object_host(from) != object_host(to)) return hand_across(from, to, bytes, extents);
  Backend* backend = of_object(to);
  return backend == nullptr ? Status(no_such_kind(to)) : backend->rebind(from, to, bytes, extents);
}

// From one machine to another, over memory that both see. Each step may have been done before.
Status BackendSet::hand_across(const std::string& from, const std::string& to, uint64_t bytes,
                               const std::vector<Extent>& extents) {
  Backend* source = of_object(from);
  Backend* target = of_object(to);
  if (source == nullptr) return no_such_kind(from);
  if (target == nullptr) return no_such_kind(to);
  if (!lies_on_shared(*source, from) || !lies_on_shared(*target, to)) return cannot("hand to another host");
  TERRACE_RETURN_IF_ERROR(source->fence(from));
  TERRACE_RETURN_IF_ERROR(source->shared_by_hosts()->write_back(from, extents));
  const bool unwritten = source->shared_by_hosts()->take_unwritten(from);
  TERRACE_RETURN_IF_ERROR(target->shared_by_hosts()->write_back(to, extents));
  TERRACE_RETURN_IF_ERROR(target->rebind(from, to, bytes, extents));
  // Of a source that has just gone away the rest is destroyed when it is back.
  (void)source->scrub(from);
  if (source == remote_) remote_->forget(from, unwritten);
  return {};
}

Kept BackendSet::kept(const std::string& name, const std::vector<Extent>& extents) {
  Backend* backend = of_object(name);
  return backend == nullptr ? Kept::no : backend->kept(name, extents);
}

HoldersEnded BackendSet::end_holders(const std::string& name) {
  Backend* backend = of_object(name);
  return backend == nullptr ? HoldersEnded{} : backend->end_holders(name);
}

bool BackendSet::is_shared(std::string_view name) const {
  Backend* backend = of_object(name);
  return backend != nullptr && lies_on_shared(*backend, name);
}

Result<Nonce> BackendSet::exchange(const std::string& name, const std::vector<Extent>& extents,
                                   const Nonce& put) {
  Backend* backend = of_object(name);
  if (backend == nullptr) return no_such_kind(name);
  SharedByHosts* shared = backend->shared_by_hosts();
  if (shared != nullptr) return shared->exchange(name, extents, put);
  return Error{.code = ErrorCode::unsupported,
               .where = "prove what it is",
               .detail = "memory of the kind '" + std::string(backend->kind()) + "' is one machine's alone"};
}

Status BackendSet::clean(const std::string& name, const std::vector<Extent>& extents) {
  Backend* backend = of_object(name);
  if (backend == nullptr) return no_such_kind(name);
  SharedByHosts* shared = backend->shared_by_hosts();
  return shared == nullptr ? Status() : shared->clean(name, extents);
}

Status BackendSet::write_back(const std::string& name, const std::vector<Extent>& extents) {
  Backend* backend = of_object(name);
  if (backend == nullptr) return no_such_kind(name);
  SharedByHosts* shared = backend->shared_by_hosts();
  return shared == nullptr ? Status() : shared->write_back(name, extents);
}

// The second half of hand_across: what this machine's or that host's caches have of the extents is from before.
Status BackendSet::show(const std::string& view, const std::string& of, uint64_t bytes,
                        const std::vector<Extent>& extents) {
  Backend* source = of_object(of);
  Backend* target = of_object(view);
  if (source == nullptr) return no_such_kind(of);
  if (target == nullptr) return no_such_kind(view);
  if (!lies_on_shared(*source, of) || !lies_on_shared(*target, view)) return no_views(view);
  TERRACE_RETURN_IF_ERROR(target->shared_by_hosts()->write_back(view, extents));
  return target->rebind(of, view, bytes, extents);
}

bool BackendSet::take_unwritten(const std::string& name) {
  Backend* backend = of_object(name);
  SharedByHosts* shared = backend == nullptr ? nullptr : backend->shared_by_hosts();
  return shared != nullptr && shared->take_unwritten(name);
}

Result<Hidden> BackendSet::hide(const std::string& view, const std::vector<Extent>& extents) {
  Backend* backend = of_object(view);
  if (backend == nullptr) return no_such_kind(view);
  SharedByHosts* shared = backend->shared_by_hosts();
  return shared == nullptr ? Hidden::written_back : shared->hide(view, extents);
}

std::vector<std::string> BackendSet::dax_regions() const {
  std::vector<std::string> all;
  for (Backend* backend : backends_) {
    const SharedByHosts* shared = backend->shared_by_hosts();
    if (shared == nullptr) continue;
    for (std::string& region : shared->dax_regions()) all.push_back(std::move(region));
  }
  return all;
}

Status BackendSet::copy(const std::string& from, const std::string& to, uint64_t bytes) {
  Backend* backend = of_object(to);
  return backend == nullptr ? Status(no_such_kind(to)) : backend->copy(from, to, bytes);
}

bool BackendSet::quick(std::string_view name, uint64_t bytes) const {
  const Backend* backend = of_object(name);
  return backend != nullptr && backend->quick(name, bytes);
}

Result<std::vector<ObservedObject>> BackendSet::list() {
  std::vector<ObservedObject> all;
  for (Backend* backend : backends_) {
    auto some = backend->list();
    if (!some.ok()) return std::move(some).error();
    all.insert(all.end(), std::make_move_iterator(some->begin()), std::make_move_iterator(some->end()));
  }
  if (remote_ != nullptr) {
    TERRACE_ASSIGN_OR_RETURN(const std::vector<ObservedObject> elsewhere, remote_->list());
    all.insert(all.end(), elsewhere.begin(), elsewhere.end());
  }
  return all;
}

Result<ObservedObject> BackendSet::usage(const std::string& name) {
  Backend* backend = of_object(name);
  if (backend == nullptr) return no_such_kind(name);
  return backend->usage(name);
}

std::string BackendSet::describe_memory() const {
  return backends_.empty() ? std::string("none") : backends_.front()->describe_memory();
}

bool BackendSet::huge_pages(std::string_view name) const {
  const Backend* backend = of_object(name);
  return backend != nullptr && backend->huge_pages(name);
}

}  // namespace terrace::daemon
