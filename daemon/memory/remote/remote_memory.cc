// SPDX-License-Identifier: Apache-2.0
#include "daemon/memory/remote/remote_memory.h"

#include <cerrno>
#include <random>
#include <utility>

namespace terrace::daemon {
namespace {

// What passes: the scrubber, and the engine with fences and resizes, try again.
Error later(const AgentAnswer& answer) {
  Error error = answer.error;
  error.code = ErrorCode::unavailable;
  error.os_errno = EAGAIN;
  return error;
}

Error away(const AgentAnswer& answer) {
  Error error = answer.error;
  error.code = ErrorCode::unavailable;
  error.os_errno = 0;
  return error;
}

Nonce draw_nonce() {
  Nonce drawn{};
  std::random_device device;
  for (uint8_t& byte : drawn) byte = static_cast<uint8_t>(device());
  return drawn;
}

}  // namespace

std::string_view object_host(std::string_view name) {
  const size_t at = name.find('@');
  return at == std::string_view::npos ? std::string_view() : name.substr(at + 1);
}

std::string_view object_on_host(std::string_view name) {
  return name.substr(0, name.find('@'));
}

void RemoteBackend::know_devices(const std::vector<KnownDevice>& devices) {
  const MutexLock lock(mutex_);
  devices_.clear();
  for (const KnownDevice& device : devices) devices_[device.id] = device;
}

void RemoteBackend::know_objects(const std::vector<KnownObject>& objects) {
  const MutexLock lock(mutex_);
  objects_.clear();
  for (const KnownObject& object : objects) objects_[object.name] = object.bytes;
}

std::vector<WireExtent> RemoteBackend::on_the_wire(const std::vector<Extent>& extents) const {
  const MutexLock lock(mutex_);
  std::vector<WireExtent> wire;
  for (const Extent& extent : extents) {
    const auto device = devices_.find(extent.device);
    if (device == devices_.end()) continue;
    const uint64_t granule = device->second.granule_bytes;
    wire.push_back({device->second.serial, extent.first_granule * granule, extent.granules * granule});
  }
  return wire;
}

AgentOrder RemoteBackend::order_of(AgentOrder::Kind kind, uint64_t bytes,
                                   const std::vector<Extent>& extents) const {
  AgentOrder order;
  order.kind = kind;
  order.bytes = bytes;
  order.extents = on_the_wire(extents);
  return order;
}

AgentAnswer RemoteBackend::give(const std::string& name, AgentOrder order) {
  order.object = object_on_host(name);
  return agents_.order(std::string(object_host(name)), order);
}

void RemoteBackend::set_bytes(const std::string& name, uint64_t bytes) {
  const MutexLock lock(mutex_);
  objects_[name] = bytes;
}

Status RemoteBackend::prove(const std::string& name, const std::vector<Extent>& extents) {
  const std::string host(object_host(name)), local_name(object_on_host(name));
  const std::vector<WireExtent> wire = on_the_wire(extents);
  if (wire.empty() || agents_.has_proved(host, wire.front().serial)) return {};
  const std::string& serial = wire.front().serial;
  const Nonce ours = draw_nonce(), theirs = draw_nonce(), zeros{};
  SharedByHosts& here = *local_.shared_by_hosts();  // is_shared(name)
  TERRACE_ASSIGN_OR_RETURN(const Nonce before, here.exchange(local_name, extents, ours));
  (void)before;
  AgentOrder order = order_of(AgentOrder::Kind::exchange, 0, extents);
  order.put = theirs;
  const AgentAnswer answer = give(name, std::move(order));
  // It may still write there: not before that is over is the memory free for another.
  if (answer.outcome == OrderOutcome::unknown) agents_.wait_until_forgotten(host);
  // Whatever came of it, nothing stays: what is written to counts as not erased, here and there.
  const auto seen_here = here.exchange(local_name, extents, zeros);
  const Status cleaned = here.clean(local_name, extents);
  if (answer.outcome == OrderOutcome::refused) return answer.error;
  if (answer.outcome != OrderOutcome::done) return away(answer);
  if (!seen_here.ok()) return seen_here.error();
  TERRACE_RETURN_IF_ERROR(cleaned);
  if (answer.found != ours || *seen_here != theirs) {
    return Error{.code = ErrorCode::unavailable,
                 .where = "prove",
                 .detail = "host " + host + " does not see the same memory as " + serial +
                           " as this machine does: what was written " +
                           (answer.found != ours ? "here was not read there" : "there was not read here") +
                           ". Only memory that both machines reach (one multi-headed device) can be leased on "
                           "both; adopt a device that they share"};
  }
  agents_.set_proved(host, serial);
  return {};
}

// Its extents are free once this has failed: so an object that may have come about is gone first.
Status RemoteBackend::carve(const std::string& name, uint64_t bytes, const std::vector<Extent>& extents) {
  if (is_shared(name)) {
    TERRACE_RETURN_IF_ERROR(may_make_shared());
    // What this machine knows to be dirty its agent may not.
    TERRACE_RETURN_IF_ERROR(local_.shared_by_hosts()->clean(std::string(object_on_host(name)), extents));
    TERRACE_RETURN_IF_ERROR(prove(name, extents));
  }
  AgentOrder order = order_of(AgentOrder::Kind::carve, bytes, extents);
  const AgentAnswer answer = give(name, std::move(order));
  if (answer.outcome == OrderOutcome::done) {
    set_bytes(name, bytes);
    return {};
  }
  if (answer.outcome == OrderOutcome::refused) return answer.error;
  if (answer.outcome != OrderOutcome::unknown) return away(answer);
  const AgentAnswer undone = give(name, order_of(AgentOrder::Kind::fence));
  if (undone.outcome == OrderOutcome::done) {
    if (give(name, order_of(AgentOrder::Kind::scrub)).outcome == OrderOutcome::done) return away(answer);
  }
  agents_.wait_until_forgotten(std::string(object_host(name)));
  return away(answer);
}

Result<UniqueFd> RemoteBackend::open(const std::string& name, ObjectAccess) {
  return Error{.code = ErrorCode::unsupported,
               .where = "open",
               .detail = "the memory object " + std::string(object_on_host(name)) + " is on host " +
                         std::string(object_host(name)) + "; attach it there, through that host's terraced"};
}

Status RemoteBackend::fence(const std::string& name) {
  const AgentAnswer answer = give(name, order_of(AgentOrder::Kind::fence));
  if (answer.outcome == OrderOutcome::refused) return answer.error;
  if (answer.outcome != OrderOutcome::done && answer.outcome != OrderOutcome::lapsed) return later(answer);
  set_bytes(name, 0);
  return {};
}

bool RemoteBackend::erases_in_place(std::string_view name) const {
  return local_.erases_in_place(object_on_host(name));
}

// By the agent where it can: only its host can write back what its caches still hold of the lease.
Status RemoteBackend::erase(const std::string& name, const std::vector<Extent>& extents, uint64_t offset,
                            uint64_t length) {
  AgentOrder order = order_of(AgentOrder::Kind::erase, 0, extents);
  order.offset = offset;
  order.length = length;
  const AgentAnswer answer = give(name, std::move(order));
  if (answer.outcome == OrderOutcome::done) return {};
  if (answer.outcome == OrderOutcome::refused) return answer.error;
  if (answer.outcome != OrderOutcome::lapsed) return later(answer);
  return local_.erase(std::string(object_on_host(name)), extents, offset, length);
}

// What a lapsed host still has of an object is destroyed there before its agent counts again.
Result<uint64_t> RemoteBackend::scrub(const std::string& name) {
  const AgentAnswer answer = give(name, order_of(AgentOrder::Kind::scrub));
  if (answer.outcome == OrderOutcome::refused) return answer.error;
  if (answer.outcome != OrderOutcome::done && answer.outcome != OrderOutcome::lapsed) return later(answer);
  const MutexLock lock(mutex_);
  objects_.erase(name);
  unwritten_.erase(name);
  return answer.bytes;
}

Status RemoteBackend::resize(const std::string& name, uint64_t from_bytes, uint64_t to_bytes,
                             const std::vector<Extent>& extents) {
  AgentOrder order = order_of(AgentOrder::Kind::resize, to_bytes, extents);
  order.from_bytes = from_bytes;
  const AgentAnswer answer = give(name, std::move(order));
  if (answer.outcome == OrderOutcome::done) {
    set_bytes(name, to_bytes);
    return {};
  }
  if (answer.outcome == OrderOutcome::refused) return answer.error;
  // A growth that was never ordered did not happen; one that may have is ordered again until that is known.
  if (answer.outcome == OrderOutcome::not_sent && to_bytes > from_bytes) return away(answer);
  return answer.outcome == OrderOutcome::lapsed ? away(answer) : later(answer);
}

Status RemoteBackend::rebind(const std::string& from, const std::string& to, uint64_t bytes,
                             const std::vector<Extent>& extents) {
  AgentOrder order = order_of(AgentOrder::Kind::rebind, bytes, extents);
  order.object = object_on_host(from);
  order.other = object_on_host(to);
  const AgentAnswer answer = agents_.order(std::string(object_host(to)), order);
  if (answer.outcome == OrderOutcome::refused) return answer.error;
  if (answer.outcome == OrderOutcome::lapsed) return away(answer);
  if (answer.outcome != OrderOutcome::done) return later(answer);
  const MutexLock lock(mutex_);
  if (object_host(from) == object_host(to)) objects_.erase(from);  // else it is hand_across()'s, or stays
  objects_[to] = bytes;
  return {};
}

void RemoteBackend::forget(const std::string& name, bool unwritten) {
  const MutexLock lock(mutex_);
  objects_.erase(name);
  if (unwritten) unwritten_.insert(name);
}

Status RemoteBackend::copy(const std::string& from, const std::string& to, uint64_t bytes) {
  AgentOrder order = order_of(AgentOrder::Kind::copy, bytes, {});
  order.other = object_on_host(to);
  const AgentAnswer answer = give(from, std::move(order));
  if (answer.outcome == OrderOutcome::done) return {};
  return answer.outcome == OrderOutcome::refused ? answer.error : away(answer);
}

Status RemoteBackend::may_make_shared() {
  if (agents_.wait_until_settled()) return {};
  return Error{.code = ErrorCode::unavailable, .where = "carve", .detail = "the manager is ending"};
}

// An agent that does not know the question has given no such lease to anybody: it has nobody to end.
HoldersEnded RemoteBackend::end_holders(const std::string& name) {
  AgentAnswer answer = give(name, order_of(AgentOrder::Kind::end_holders));
  switch (answer.outcome) {
    case OrderOutcome::done: return {{}, std::move(answer.ended)};
    case OrderOutcome::lapsed: return {};  // it ended them, and fenced, by itself
    case OrderOutcome::refused: return {answer.error, std::move(answer.ended)};
    case OrderOutcome::not_sent:
    case OrderOutcome::unknown: break;
  }
  return {later(answer), {}};
}

Kept RemoteBackend::kept(const std::string& name, const std::vector<Extent>& extents) {
  const AgentAnswer answer = give(name, order_of(AgentOrder::Kind::kept, 0, extents));
  return answer.outcome == OrderOutcome::done ? answer.kept : Kept::yes;
}

bool RemoteBackend::is_shared(std::string_view name) const {
  return lies_on_shared(local_, object_on_host(name));
}

Result<Nonce> RemoteBackend::exchange(const std::string& name, const std::vector<Extent>& extents,
                                      const Nonce& put) {
  AgentOrder order = order_of(AgentOrder::Kind::exchange, 0, extents);
  order.put = put;
  const AgentAnswer answer = give(name, std::move(order));
  if (answer.outcome == OrderOutcome::done) return answer.found;
  return answer.outcome == OrderOutcome::refused ? answer.error : away(answer);
}

// What the caches of a host that has lapsed still have reaches the memory later, or never.
Status RemoteBackend::write_back(const std::string& name, const std::vector<Extent>& extents) {
  const AgentAnswer answer = give(name, order_of(AgentOrder::Kind::write_back, 0, extents));
  const MutexLock lock(mutex_);
  if (answer.outcome == OrderOutcome::lapsed)
    unwritten_.insert(name);
  else if (answer.outcome == OrderOutcome::done)
    unwritten_.erase(name);
  if (answer.outcome == OrderOutcome::done || answer.outcome == OrderOutcome::lapsed) return {};
  return answer.outcome == OrderOutcome::refused ? answer.error : later(answer);
}

bool RemoteBackend::take_unwritten(const std::string& name) {
  const MutexLock lock(mutex_);
  return unwritten_.erase(name) != 0;
}

// A host that has lapsed fenced it by itself, and removes it before its agent counts again.
Result<Hidden> RemoteBackend::hide(const std::string& view, const std::vector<Extent>& extents) {
  Hidden hidden = Hidden::written_back;
  for (const auto kind : {AgentOrder::Kind::fence, AgentOrder::Kind::kept, AgentOrder::Kind::write_back,
                          AgentOrder::Kind::scrub}) {
    const bool of_memory = kind == AgentOrder::Kind::kept || kind == AgentOrder::Kind::write_back;
    const AgentAnswer answer = give(view, of_memory ? order_of(kind, 0, extents) : order_of(kind));
    if (answer.outcome == OrderOutcome::lapsed) {
      if (kind != AgentOrder::Kind::scrub) hidden = Hidden::lines_may_remain;
      break;
    }
    if (answer.outcome == OrderOutcome::refused) {
      const bool busy = answer.error.code == ErrorCode::busy || answer.error.code == ErrorCode::io_error;
      return busy ? later(answer) : answer.error;
    }
    if (answer.outcome != OrderOutcome::done) return later(answer);
    if (kind == AgentOrder::Kind::kept && answer.kept == Kept::yes) return still_kept(view);
  }
  const MutexLock lock(mutex_);
  objects_.erase(view);
  return hidden;
}

Result<std::vector<ObservedObject>> RemoteBackend::list() {
  const MutexLock lock(mutex_);
  std::vector<ObservedObject> all;
  for (const auto& [name, bytes] : objects_) all.push_back({name, bytes, bytes});
  return all;
}

Result<ObservedObject> RemoteBackend::usage(const std::string& name) {
  const MutexLock lock(mutex_);
  const auto known = objects_.find(name);
  if (known == objects_.end())
    return Error{.code = ErrorCode::not_found, .where = "usage", .detail = "no memory object " + name};
  return ObservedObject{name, known->second, known->second};
}

bool RemoteBackend::huge_pages(std::string_view name) const {
  return local_.huge_pages(object_on_host(name));
}

}  // namespace terrace::daemon
