// SPDX-License-Identifier: Apache-2.0
// Pieces of JSON on their way to an HTTP server: POSTed in batches, kept within a bound while the server does not take them.
//
// What cannot be sent is tried again, with pauses from 1 s to 60 s. What is beyond the bound, and a batch that the server
// refuses for what it is (any status but 2xx, 408, 429 and 5xx), is left out and counted. A batch may arrive twice: when its
// answer did not. The log says once that the server fails, and once that it takes them again.
//
// Place     EventWebhook (daemon/events/sinks) and OtlpExporter (daemon/traces/otlp) have one each.
// Threads   The event loop's thread only. append() never waits: a server that hangs costs one connection.
#pragma once

#include <kj/async-io.h>
#include <kj/compat/http.h>
#include <kj/compat/tls.h>

#include <cstdint>
#include <deque>
#include <string>

namespace terrace::daemon {

struct JsonPostOptions {
  enum class Full { refuse_new, drop_oldest };

  std::string who;         // in the log, before the URL: "webhook"
  std::string what;        // "events"
  std::string url;         // http:// or https://
  std::string head, tail;  // of a request, around its pieces and the commas between them
  Full full = Full::refuse_new;
  uint64_t waiting_bytes_max = 4ull << 20;
  size_t batch_max = 200;
  kj::Duration answer_max = 10 * kj::SECONDS;
  kj::Duration pause_min = 1 * kj::SECONDS;
  kj::Duration pause_max = 60 * kj::SECONDS;
  kj::Duration gather = 50 * kj::MILLISECONDS;  // what comes within it goes in one batch
};

class JsonPost final : private kj::TaskSet::ErrorHandler {
 public:
  JsonPost(JsonPostOptions options, kj::Network& network, kj::Timer& timer);
  ~JsonPost() noexcept;

  // Returns   whether it was taken; if not, the caller says whether that counts
  bool append(std::string piece);
  void count_left_out() { ++left_out_; }
  uint64_t left_out() const { return left_out_; }
  size_t waiting() const { return waiting_.size(); }
  bool idle() const { return waiting_.empty(); }

 private:
  enum class Outcome { sent, refused, failed };

  void taskFailed(kj::Exception&& exception) override;
  void drop_oldest();
  kj::Promise<void> send_all();
  kj::Promise<void> send_one();
  kj::Promise<unsigned> post(const std::string& body);
  std::string take_batch();
  void ended(Outcome outcome, const std::string& what);

  const JsonPostOptions options_;
  kj::Timer& timer_;
  kj::Own<kj::TlsContext> tls_;  // of https only
  kj::Own<kj::Network> tls_network_;
  kj::HttpHeaderTable::Builder header_names_;
  kj::Own<kj::HttpHeaderTable> headers_;
  kj::Own<kj::HttpClient> client_;
  std::deque<std::string> waiting_;
  size_t under_way_ = 0;  // the first of waiting_, in a request that has no answer yet
  uint64_t waiting_bytes_ = 0;
  uint64_t left_out_ = 0;
  bool sending_ = false;
  bool failing_ = false;
  kj::Duration pause_;
  kj::TaskSet tasks_;
};

}  // namespace terrace::daemon
