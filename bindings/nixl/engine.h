// SPDX-License-Identifier: Apache-2.0
// The backend as NIXL calls it. What it is asked for becomes a job (job.h) of copies or of objects.
//
// Threads   As NIXL calls: one thread registers and loads, any posts and checks. See docs/design/0046-nixl.md.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend_engine.h"
#include "bindings/nixl/job.h"
#include "bindings/nixl/leased_memory.h"
#include "bindings/nixl/notifications/channel.h"
#include "bindings/nixl/notifications/inbox.h"
#include "bindings/nixl/objects.h"
#include "bindings/nixl/registrations.h"
#include "bindings/nixl/settings.h"
#include "core/base/sync/mutex.h"

namespace terrace::nixl {

struct Prepared {
  std::shared_ptr<Job> job = nullptr;
  std::vector<WrittenRange> written = {};  // what the other agent is told with the next notification
};

class Engine final : public nixlBackendEngine {
 public:
  explicit Engine(const nixlBackendInitParams* parameters);

  bool supportsRemote() const override { return true; }
  bool supportsLocal() const override { return true; }
  bool supportsNotif() const override { return true; }
  nixl_mem_list_t getSupportedMems() const override;

  nixl_status_t registerMem(const nixlBlobDesc& memory, const nixl_mem_t& type, nixlBackendMD*& out) override;
  nixl_status_t deregisterMem(nixlBackendMD* registration) override;
  nixl_status_t loadLocalMD(nixlBackendMD* input, nixlBackendMD*& output) override;
  nixl_status_t getPublicData(const nixlBackendMD* registration, std::string& words) const override;
  nixl_status_t loadRemoteMD(const nixlBlobDesc& input, const nixl_mem_t& type, const std::string& agent,
                             nixlBackendMD*& output) override;
  nixl_status_t unloadMD(nixlBackendMD* registration) override;

  nixl_status_t getConnInfo(std::string& words) const override;
  nixl_status_t loadRemoteConnInfo(const std::string& agent, const std::string& words) override;
  nixl_status_t connect(const std::string& agent) override;
  nixl_status_t disconnect(const std::string& agent) override;

  nixl_status_t prepXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                         const nixl_meta_dlist_t& remote, const std::string& agent, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t* options) const override;
  nixl_status_t postXfer(const nixl_xfer_op_t& operation, const nixl_meta_dlist_t& local,
                         const nixl_meta_dlist_t& remote, const std::string& agent, nixlBackendReqH*& handle,
                         const nixl_opt_b_args_t* options) const override;
  nixl_status_t checkXfer(nixlBackendReqH* handle) const override;
  nixl_status_t releaseReqH(nixlBackendReqH* handle) const override;

  nixl_status_t getNotifs(notif_list_t& all) override;
  nixl_status_t genNotif(const std::string& agent, const std::string& message) const override;
  nixl_status_t queryMem(const nixl_reg_dlist_t& descriptors,
                         std::vector<nixl_query_resp_t>& found) const override;

 private:
  Status open(const Parameters& parameters);
  nixl_status_t register_object(const nixlBlobDesc& object, Registration& made);
  nixl_status_t register_memory(const nixlBlobDesc& memory, Registration& made);
  std::string load_object(Registration& loaded, const std::string& words);
  nixl_status_t prepare_copies(bool writes, const nixl_meta_dlist_t& local, const nixl_meta_dlist_t& remote,
                               Prepared& made) const;
  nixl_status_t prepare_objects(bool writes, const nixl_meta_dlist_t& local, const nixl_meta_dlist_t& remote,
                                Prepared& made) const;
  std::shared_ptr<Channel> channel(const std::string& agent) const;
  nixl_status_t peer_lives(const std::string& agent) const;
  nixl_status_t notify(const std::string& agent, const std::string& message) const;
  void tell_written(const std::string& agent, const std::vector<WrittenRange>& ranges) const;

  Settings settings_;
  // The interface makes const what changes these: posting, checking, notifying.
  mutable LeasedMemory leases_;
  mutable Objects objects_;
  mutable Inbox inbox_;
  mutable NoncoherentMemory noncoherent_;
  mutable Mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<Channel>> channels_ TERRACE_GUARDED_BY(mutex_);
  std::map<std::string, std::string> connection_infos_ TERRACE_GUARDED_BY(mutex_);
  mutable std::unique_ptr<Workers> workers_;  // last: ends first
};

}  // namespace terrace::nixl
