// Events as JSON, POSTed to an HTTP server in batches: {"run": "...", "events": [...]}.
//
// What cannot be sent waits within a bound and is tried again, with pauses from 1 s to 60 s; events beyond the bound, and
// those of a batch that the server refuses for what it is (any status but 2xx, 408, 429 and 5xx), are left out and counted.
// A batch may arrive twice: when its answer did not. `run` and `id` name an event.
//
// Place     EventSinks makes one where the configuration says so ([events] webhook).
// Threads   The event loop's thread only. append() never waits: a server that hangs costs one connection.
#pragma once

#include <kj/async-io.h>
#include <kj/compat/http.h>
#include <kj/compat/tls.h>

#include <cstdint>
#include <deque>
#include <string>

#include "daemon/events/event.h"

namespace terrace::daemon {

struct EventWebhookOptions {
  std::string url;  // http:// or https://
  uint64_t waiting_bytes_max = 4ull << 20;
  size_t batch_events_max = 200;
  kj::Duration answer_max = 10 * kj::SECONDS;
  kj::Duration pause_min = 1 * kj::SECONDS;
  kj::Duration pause_max = 60 * kj::SECONDS;
  kj::Duration gather = 50 * kj::MILLISECONDS;  // what comes within it goes in one batch
};

class EventWebhook final : private kj::TaskSet::ErrorHandler {
 public:
  EventWebhook(EventWebhookOptions options, std::string run, kj::Network& network, kj::Timer& timer);
  ~EventWebhook() noexcept;

  void append(const Event& event);
  uint64_t left_out() const { return left_out_; }
  bool idle() const { return waiting_.empty(); }

 private:
  enum class Outcome { sent, refused, failed };

  void taskFailed(kj::Exception&& exception) override;
  kj::Promise<void> send_all();
  kj::Promise<void> send_one();
  kj::Promise<unsigned> post(const std::string& body);
  std::string take_batch(size_t& count) const;
  void ended(Outcome outcome, size_t count, const std::string& what);

  const EventWebhookOptions options_;
  const std::string run_;
  kj::Timer& timer_;
  kj::Own<kj::TlsContext> tls_;  // of https only
  kj::Own<kj::Network> tls_network_;
  kj::HttpHeaderTable::Builder header_names_;
  kj::Own<kj::HttpHeaderTable> headers_;
  kj::Own<kj::HttpClient> client_;
  std::deque<std::string> waiting_;  // JSON, the first of them under way
  uint64_t waiting_bytes_ = 0;
  uint64_t left_out_ = 0;
  bool sending_ = false;
  bool failing_ = false;
  kj::Duration pause_;
  kj::TaskSet tasks_;
};

}  // namespace terrace::daemon
