// SPDX-License-Identifier: Apache-2.0
// The planner over HTTP: a trace is sent, and what `terrace plan --json` or `terrace tiersim --json` would print of it
// comes back.
//
//   POST /api/v1/plan, /api/v1/tiersim   the trace as the body; options of the command line in the query
//   GET  /api/v1/planner                 how far the calculation under way is
//
// Place     web_server.h hands over requests of these paths -> here: the trace into memory of its own -> a worker thread
//           -> a helper process (daemon/helper), which computes. Nothing of it is on the event loop but the arriving bytes.
// Bounds    One at a time; the trace, its time to arrive, the helper's time and memory: planner.cc. Who goes away while it
//           computes ends it.
// Threads   The event loop's thread only.
#pragma once

#include <kj/async-io.h>
#include <kj/timer.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/base/units.h"
#include "daemon/event_loop/worker.h"
#include "daemon/rpc/service.h"
#include "daemon/web/web_answer.h"

namespace terrace::daemon {

inline constexpr uint64_t planner_trace_bytes_max = 32 * mib;
// No type of a form: another site's page cannot send it without asking first, and is refused then.
inline constexpr const char* planner_trace_type = "application/vnd.terrace.trace";

class Planner {
 public:
  Planner(Service& service, kj::Timer& timer) : service_(service), timer_(timer) {}
  ~Planner();
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // Whether `place` (a path without its query) takes a trace.
  static bool takes(std::string_view place);

  struct Asked {
    std::string path;                     // with its query
    std::string type;                     // of the body
    kj::Maybe<uint64_t> bytes = nullptr;  // of the body, where that was said
    std::function<bool()> gone;           // whether who asked is away
  };
  // `body` is read to its end, or as far as it is of use.
  kj::Promise<WebAnswer> compute(const PeerCredentials& peer, Asked asked, kj::AsyncInputStream& body);
  WebAnswer progress(const PeerCredentials& peer) const;

 private:
  struct Job;
  class Turn;

  kj::Promise<void> read_trace(kj::AsyncInputStream& body, std::shared_ptr<Job> job);
  kj::Promise<WebAnswer> run(std::shared_ptr<Job> job);
  kj::Promise<void> watch_asker(std::shared_ptr<Job> job);

  Service& service_;
  kj::Timer& timer_;
  std::shared_ptr<Job> job_;        // under way; null: none
  std::unique_ptr<Worker> worker_;  // last: its end waits for the helper, which has been told to end
};

// What the OpenAPI document says of these paths.
nlohmann::json planner_open_api();

}  // namespace terrace::daemon
