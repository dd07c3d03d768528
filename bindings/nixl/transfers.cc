// SPDX-License-Identifier: Apache-2.0
// The engine's transfers: descriptors become a job, which is posted, asked for and released.
#include <utility>

#include "bindings/nixl/copy_job.h"
#include "bindings/nixl/engine.h"
#include "bindings/nixl/object_job.h"

namespace terrace::nixl {
namespace {

struct Handle : nixlBackendReqH {
  explicit Handle(Prepared of) : job(std::move(of.job)), written(std::move(of.written)) {}
  const std::shared_ptr<Job> job;
  const std::vector<WrittenRange> written;
};

Job& job_of(nixlBackendReqH* handle) {
  return *static_cast<Handle*>(handle)->job;
}

const Registration& registration_of(const nixlMetaDesc& descriptor) {
  return *static_cast<const Registration*>(descriptor.metadataP);
}

bool inside(const Registration& registered, uint64_t address, size_t bytes) {
  return address >= registered.address && bytes <= registered.bytes &&
         address - registered.address <= registered.bytes - bytes;
}

// The place of one side of a copy in this process.
struct Place {
  std::byte* memory = nullptr;
  bool noncoherent = false;
  bool writable = true;
  std::shared_ptr<MappedLease> keep = {};
};

std::string find_place(const nixlMetaDesc& descriptor, Place& place) {
  const Registration& registered = registration_of(descriptor);
  if (!registered.refusal.empty()) return registered.refusal;
  if (!inside(registered, descriptor.addr, descriptor.len))
    return "a descriptor leaves the memory that was registered";
  if (registered.kind == Registration::Kind::memory) {
    place.memory = reinterpret_cast<std::byte*>(descriptor.addr);
    place.noncoherent = registered.leased && !registered.leased->coherent;
    return {};
  }
  const RemoteRange& range = registered.remote;
  if (range.memory->lease->state() == LeaseState::lost || range.memory->lease->epoch() != range.memory->epoch)
    return "lease " + std::to_string(range.memory->lease->id().value) +
           " has ended, or was moved: load the agent's metadata again";
  place.memory = range.memory->begin() + range.offset + (descriptor.addr - registered.address);
  place.noncoherent = !range.memory->coherent;
  place.writable = range.memory->writable;
  place.keep = range.memory;
  return {};
}

}  // namespace

nixl_status_t Engine::prepXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                               const nixl_meta_dlist_t& remote, const std::string& agent,
                               nixlBackendReqH*& handle, const nixl_opt_b_args_t* /*options*/) const {
  (void)agent;
  handle = nullptr;
  if (local.descCount() != remote.descCount() || local.isEmpty())
    return fail(NIXL_ERR_INVALID_PARAM, "as many descriptors there as here");
  for (int at = 0; at != local.descCount(); ++at)
    if (local[at].len != remote[at].len || local[at].metadataP == nullptr || remote[at].metadataP == nullptr)
      return fail(NIXL_ERR_INVALID_PARAM, "a descriptor has another length here than there");
  if (local.getType() != DRAM_SEG) return fail(NIXL_ERR_NOT_SUPPORTED, "the local side of a transfer is DRAM");
  Prepared made;
  const bool writes = operation == NIXL_WRITE;
  const nixl_status_t prepared = remote.getType() == OBJ_SEG ? prepare_objects(writes, local, remote, made)
                                                             : prepare_copies(writes, local, remote, made);
  if (prepared == NIXL_SUCCESS) handle = new Handle(std::move(made));
  return prepared;
}

nixl_status_t Engine::prepare_copies(bool writes, const nixl_meta_dlist_t& local,
                                     const nixl_meta_dlist_t& remote, Prepared& made) const {
  std::vector<Copy> copies;
  std::vector<std::shared_ptr<MappedLease>> keep;
  for (int at = 0; at != local.descCount(); ++at) {
    Place here, there;
    for (auto [descriptor, place] : {std::pair(&local[at], &here), std::pair(&remote[at], &there)})
      if (const std::string why = find_place(*descriptor, *place); !why.empty())
        return fail(NIXL_ERR_NOT_ALLOWED, why);
    Place& to = writes ? there : here;
    Place& from = writes ? here : there;
    if (!to.writable)
      return fail(NIXL_ERR_NOT_ALLOWED, "this agent may only read the lease that a transfer writes");
    copies.push_back({to.memory, from.memory, local[at].len, from.noncoherent, to.noncoherent});
    if (writes && there.noncoherent && there.keep != nullptr)
      made.written.push_back({there.keep->lease->id().value,
                              static_cast<uint64_t>(there.memory - there.keep->begin()), local[at].len});
    if (there.keep != nullptr && (keep.empty() || keep.back() != there.keep)) keep.push_back(there.keep);
  }
  made.written = merged(std::move(made.written));
  made.job = std::make_shared<CopyJob>(std::move(copies), std::move(keep));
  return NIXL_SUCCESS;
}

nixl_status_t Engine::prepare_objects(bool writes, const nixl_meta_dlist_t& local,
                                      const nixl_meta_dlist_t& remote, Prepared& made) const {
  std::vector<ObjectTransfer> transfers;
  std::map<std::string, size_t> by_key;
  for (int at = 0; at != local.descCount(); ++at) {
    const Registration& object = registration_of(remote[at]);
    if (!object.refusal.empty()) return fail(NIXL_ERR_NOT_ALLOWED, object.refusal);
    if (!inside(registration_of(local[at]), local[at].addr, local[at].len))
      return fail(NIXL_ERR_INVALID_PARAM, "a descriptor leaves the memory that was registered");
    const auto [place, is_new] = by_key.try_emplace(object.key, transfers.size());
    if (is_new) transfers.push_back({object.key, {}});
    transfers[place->second].pieces.push_back(
        {remote[at].addr, reinterpret_cast<std::byte*>(local[at].addr), local[at].len});
  }
  for (ObjectTransfer& one : transfers) {
    if (!writes) continue;
    if (const std::string why = order_for_write(one, objects_.bytes_max()); !why.empty())
      return fail(NIXL_ERR_INVALID_PARAM, why);
  }
  made.job = std::make_shared<ObjectJob>(objects_, writes, std::move(transfers));
  return NIXL_SUCCESS;
}

nixl_status_t Engine::postXfer(const nixl_xfer_op_t& /*operation*/, const nixl_meta_dlist_t& /*local*/,
                               const nixl_meta_dlist_t& /*remote*/, const std::string& agent,
                               nixlBackendReqH*& handle, const nixl_opt_b_args_t* options) const {
  if (handle == nullptr) return NIXL_ERR_INVALID_PARAM;
  if (const nixl_status_t lives = peer_lives(agent); lives != NIXL_SUCCESS) return lives;
  const auto& prepared = *static_cast<Handle*>(handle);
  const bool notifies = options != nullptr && options->hasNotif;
  std::function<nixl_status_t()> last;
  if (notifies || !prepared.written.empty())
    last = [this, agent, written = prepared.written, notifies,
            message = notifies ? options->notifMsg : std::string()] {
      tell_written(agent, written);
      return notifies ? notify(agent, message) : NIXL_SUCCESS;
    };
  const std::shared_ptr<Job> job = prepared.job;
  job->begin(std::move(last));
  if (job->is_small())
    while (job->step()) {
    }
  else
    workers_->add(job);
  return job->status();
}

// Whoever asks does a part of the work: with one thread that waits here, a second one gains less than it costs.
nixl_status_t Engine::checkXfer(nixlBackendReqH* handle) const {
  if (handle == nullptr) return NIXL_ERR_INVALID_PARAM;
  Job& job = job_of(handle);
  job.step();
  return job.status();
}

nixl_status_t Engine::releaseReqH(nixlBackendReqH* handle) const {
  const std::unique_ptr<Handle> ended(static_cast<Handle*>(handle));
  if (ended != nullptr) ended->job->cancel();
  return NIXL_SUCCESS;
}

}  // namespace terrace::nixl
