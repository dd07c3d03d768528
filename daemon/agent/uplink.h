// SPDX-License-Identifier: Apache-2.0
// The agent's connection to its manager, kept up for as long as the agent runs: connects, enrolls, renews the
// host lease, and says when it is there, when it is away, and when the host lease has run out and all was
// fenced.
//
//   away ─ connect, TLS, enroll, take stock, report ─► connected ─ heartbeat every H/3 ─► ...
//     ▲                                                    │ an error, or no answer in H/4
//     └────────────────────────────────────────────────────┘
//   Meanwhile, whatever the state: when the promise ends, everything is fenced.
//
// Place     daemon/agent/local_service.h asks for service(); Orders does what the manager says.
// Threads   The event loop's thread; in_force() any.
// Invariant U1  the lease file says never more than what the manager promised (daemon/model/host_lease.h),
//               and it says so before a heartbeat's answer is used for anything
//           U2  after the promise has ended nothing is connected until all objects were fenced
//           U3  no order is carried out for a manager of another store than the one that the lease file names
#pragma once

#include <kj/async-io.h>

#include <atomic>
#include <memory>
#include <string>

#include "core/base/clock.h"
#include "daemon/agent/certificate_renewal.h"
#include "daemon/agent/host_lease_file.h"
#include "daemon/agent/orders.h"
#include "daemon/model/host_lease.h"
#include "daemon/tls/credentials.h"

namespace terrace::daemon {

// Who wants to know; daemon/agent/local_service.h is one.
class UplinkListener {
 public:
  virtual ~UplinkListener() noexcept(false) = default;
  virtual void manager_connected() = 0;
  virtual void manager_away() = 0;
  // All memory of this host was fenced, for this reason.
  virtual void host_fenced(const std::string& reason) = 0;
};

class Uplink final : private kj::TaskSet::ErrorHandler {
 public:
  // `credentials` outlive it.
  Uplink(std::string manager, Credentials& credentials, kj::Network& network, const Clock& clock,
         kj::Timer& timer, HostLeaseFile& file);
  ~Uplink() noexcept(false);

  // The operator's word: whoever registers this host first is obeyed, whatever store was obeyed before.
  void take_over() { take_over_ = true; }

  // Call once; both outlive it.
  void start(Orders& orders, UplinkListener& listener);

  // Ends the connection, and renews nothing any more. What is leased here stays until the host lease ends.
  void stop();

  // A manager whose certificate is revoked by now is not obeyed any more, and left at the next heartbeat.
  void credentials_changed();

  // The manager, while it is connected.
  kj::Maybe<rpc::AgentService::Client> service();
  bool in_force() const;
  bool connected() const { return connected_; }
  const std::string& manager() const { return manager_; }
  const std::string& host() const { return host_; }  // as the manager calls this host; empty: never connected
  // Until when what is leased here stays, without another word from the manager; 0: nothing is promised.
  uint64_t promised_until_ns() const { return file_.fence_at_ns(); }
  // When the manager was last heard; 0: never by this process.
  uint64_t heard_ns() const { return heard_ns_; }
  uint64_t losses() const { return losses_; }                  // of the connection, once it was there
  uint64_t host_fences() const { return host_fences_; }        // times that all memory of this host was fenced
  uint64_t host_lease_ns() const { return terms_.length_ns; }  // how long a promise is; 0: never connected
  // Why the manager is away, in words, and what that means for leases; the trouble alone.
  std::string absence() const;
  std::string trouble() const { return trouble_.empty() ? "not connected yet" : trouble_; }

 private:
  struct Link;

  kj::Promise<void> run();
  kj::Promise<void> connect();
  kj::Promise<void> enroll();
  StoreId check_store(const std::string& text);
  kj::Promise<void> obey(StoreId store);
  kj::Promise<void> report(std::vector<ObservedObject> observed, rpc::Registration::Client registration);
  kj::Promise<void> heartbeats();
  kj::Promise<void> follow_devices(std::vector<SeenDevice> adopted);
  void check_manager();  // an exception when its certificate is revoked
  Link& link();          // an exception when it was dropped meanwhile
  void promised(uint64_t sent_ns);
  void record_promise();
  void begin_margin();
  Status allow_more(const FenceEstimate& more, bool must);
  uint64_t margin_now(const FenceEstimate& estimate) const;
  void write_fencing(rpc::AgentFencing::Builder out) const;
  bool run_out(uint64_t now_ns) const;
  void drop_link();
  kj::Promise<void> watch_loop();
  kj::Promise<void> fence(uint64_t at_ns);
  void taskFailed(kj::Exception&& exception) override;
  template <typename T>
  kj::Promise<T> within(kj::Promise<T> work, uint64_t ns, const char* what);

  const std::string manager_;
  Credentials& credentials_;
  CertificateRenewal renewal_;
  kj::Network& network_;
  const Clock& clock_;
  kj::Timer& timer_;
  HostLeaseFile& file_;
  Orders* orders_ = nullptr;
  UplinkListener* listener_ = nullptr;
  const uint64_t instance_;
  std::string host_;
  std::string trouble_;
  HostLeaseTerms terms_;
  std::unique_ptr<HostLeasePromise> promise_;
  kj::Own<kj::PromiseFulfiller<void>> hurry_;  // the next heartbeat is due now
  std::unique_ptr<Link> link_;
  std::atomic<bool> registering_ = false;
  bool connected_ = false;
  bool fencing_ = false;
  bool take_over_ = false;
  bool refused_ = false;  // by the manager, in words: asked again less often
  uint64_t pause_ns_;
  uint64_t heard_ns_ = 0, losses_ = 0, host_fences_ = 0;
  std::unique_ptr<kj::TaskSet> tasks_;
};

}  // namespace terrace::daemon
