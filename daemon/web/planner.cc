// SPDX-License-Identifier: Apache-2.0
#include "daemon/web/planner.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "core/base/unique_fd.h"
#include "daemon/helper/helper.h"
#include "daemon/web/api_query.h"
#include "daemon/web/denied.h"

namespace terrace::daemon {
namespace {

constexpr const char* where = "planner";
constexpr uint64_t name_bytes_max = 200;
constexpr size_t part_bytes = 1 << 16;  // of the trace, in one turn of the loop
constexpr kj::Duration arrival_max = 120 * kj::SECONDS;
constexpr kj::Duration asker_interval = 200 * kj::MILLISECONDS;
// Of the helper. Below every other process of this machine: nobody's grant waits for a plan.
constexpr HelperBounds bounds{
    .time_ns = 300 * ns_per_s, .memory_bytes = 2 * gib, .answer_bytes = 16 * mib, .nice = 19};

std::string_view place_of(std::string_view path) {
  return path.substr(0, path.find('?'));
}

// "plan", "tiersim".
std::string job_of(std::string_view path) {
  const std::string_view place = place_of(path);
  return std::string(place.substr(place.rfind('/') + 1));
}

Error planner_error(ErrorCode code, std::string detail) {
  return Error{.code = code, .where = where, .detail = std::move(detail)};
}

WebAnswer too_large() {
  WebAnswer answer = web_error(planner_error(
      ErrorCode::limit_exceeded, "the trace has more than " + format_size(planner_trace_bytes_max) +
                                     "; `terrace plan` and `terrace tiersim` read larger ones where they run"));
  answer.status = 413;
  return answer;
}

// The words for the helper, of the query of `path`. A name of somebody's file is shown in errors: without what a
// terminal or a log would take for more.
Result<std::vector<std::string>> words_of(const std::string& path) {
  std::vector<std::string> words = {job_of(path)};
  const size_t question = std::min(path.find('?'), path.size());
  for (auto& [name, value] : query_parts(std::string_view(path).substr(std::min(question + 1, path.size())))) {
    if (name.find('=') != std::string::npos || value.find('\0') != std::string::npos ||
        name.find('\0') != std::string::npos)
      return planner_error(ErrorCode::invalid_argument, "an option has a name or a value that cannot be one");
    if (name == "name") {
      value.resize(std::min<size_t>(value.size(), name_bytes_max));
      for (char& c : value)
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
    }
    words.push_back(name + "=" + value);
  }
  return words;
}

}  // namespace

struct Planner::Job {
  std::vector<std::string> words;
  UniqueFd trace;
  uint64_t bytes = 0;
  uint64_t began_ns = 0;
  bool computing = false;
  std::function<bool()> gone;
  std::unique_ptr<kj::byte[]> part;
  HelperWatch watch;
};

// As long as who asked waits. Its end ends the helper, too.
class Planner::Turn {
 public:
  Turn(Planner& planner, std::shared_ptr<Job> job) : planner_(planner), job_(std::move(job)) {
    planner_.job_ = job_;
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() noexcept(false) {
    job_->watch.cancel();
    planner_.job_ = nullptr;
  }

 private:
  Planner& planner_;
  std::shared_ptr<Job> job_;
};

Planner::~Planner() {
  if (job_ != nullptr) job_->watch.cancel();
}

bool Planner::takes(std::string_view place) {
  return place == "/api/v1/plan" || place == "/api/v1/tiersim";
}

kj::Promise<WebAnswer> Planner::compute(const PeerCredentials& peer, Asked asked, kj::AsyncInputStream& body) {
  if (service_.authority_of(peer) == Authority::none)
    return deny_web(service_, peer, job_of(asked.path).c_str());
  if (asked.type != planner_trace_type) {
    WebAnswer answer = web_error(planner_error(
        ErrorCode::invalid_argument, std::string("send the trace with Content-Type: ") + planner_trace_type));
    answer.status = 415;
    return answer;
  }
  KJ_IF_MAYBE (bytes, asked.bytes) {
    if (*bytes > planner_trace_bytes_max) return too_large();
  }
  if (job_ != nullptr)
    return web_error(planner_error(ErrorCode::busy, "another trace is being computed, for " +
                                                        format_duration(service_.now_ns() - job_->began_ns) +
                                                        " now; one at a time"));
  auto words = words_of(asked.path);
  if (!words.ok()) return web_error(words.error());
  auto job = std::make_shared<Job>();
  job->words = std::move(words).value();
  job->gone = std::move(asked.gone);
  job->began_ns = service_.now_ns();
  job->trace.reset(::memfd_create("terrace-trace", MFD_CLOEXEC));
  if (!job->trace.valid()) return web_error(os_error(errno, where, "no memory for the trace"));
  auto turn = kj::heap<Turn>(*this, job);
  auto late = timer_.afterDelay(arrival_max).then([]() -> kj::Promise<void> {
    return KJ_EXCEPTION(DISCONNECTED, "the trace does not arrive");
  });
  return read_trace(body, job)
      .exclusiveJoin(kj::mv(late))
      .then([this, job]() -> kj::Promise<WebAnswer> {
        if (job->bytes > planner_trace_bytes_max) return too_large();
        return run(job);
      })
      .attach(kj::mv(turn));
}

// To its end, or until it is too large.
kj::Promise<void> Planner::read_trace(kj::AsyncInputStream& body, std::shared_ptr<Job> job) {
  if (job->part == nullptr) job->part = std::make_unique<kj::byte[]>(part_bytes);
  return body.tryRead(job->part.get(), 1, part_bytes).then([this, &body, job](size_t got) -> kj::Promise<void> {
    if (got == 0) return kj::READY_NOW;
    job->bytes += got;
    if (job->bytes > planner_trace_bytes_max) return kj::READY_NOW;
    for (size_t at = 0; at < got;) {
      const ssize_t wrote = ::write(job->trace.get(), job->part.get() + at, got - at);
      if (wrote < 0) return KJ_EXCEPTION(FAILED, "no memory for the trace");
      at += static_cast<size_t>(wrote);
    }
    return read_trace(body, job);
  });
}

kj::Promise<WebAnswer> Planner::run(std::shared_ptr<Job> job) {
  if (::lseek(job->trace.get(), 0, SEEK_SET) != 0)
    return web_error(os_error(errno, where, "the trace cannot be read again"));
  job->computing = true;
  if (worker_ == nullptr) worker_ = std::make_unique<Worker>();
  return worker_->run([job] { return run_helper(job->words, job->trace.get(), bounds, job->watch); })
      .then([](Result<std::string> document) {
        return document.ok() ? WebAnswer{.body = std::move(document).value() + "\n"}
                             : web_error(document.error());
      })
      .attach(watch_asker(job).eagerlyEvaluate([](kj::Exception&&) {}));
}

// Nothing reads from the connection while an answer is made: whether the other end is there is asked for.
kj::Promise<void> Planner::watch_asker(std::shared_ptr<Job> job) {
  return timer_.afterDelay(asker_interval).then([this, job]() -> kj::Promise<void> {
    if (!job->gone || !job->gone()) return watch_asker(job);
    job->watch.cancel();
    return kj::READY_NOW;
  });
}

WebAnswer Planner::progress(const PeerCredentials& peer) const {
  if (service_.authority_of(peer) == Authority::none) return deny_web(service_, peer, "planner");
  if (job_ == nullptr) return web_json({{"busy", false}});
  nlohmann::json document = {{"busy", true},
                             {"tool", job_->words.front()},
                             {"elapsed_ns", service_.now_ns() - job_->began_ns},
                             {"trace_bytes", job_->bytes},
                             {"computing", job_->computing},
                             {"done", 0},
                             {"total", 0},
                             {"what", ""}};
  const std::string said = job_->watch.progress();  // "DONE TOTAL what"
  const size_t first = said.find(' ');
  const size_t second = first == std::string::npos ? first : said.find(' ', first + 1);
  if (second != std::string::npos) {
    document["done"] = std::strtoull(said.c_str(), nullptr, 10);
    document["total"] = std::strtoull(said.c_str() + first, nullptr, 10);
    document["what"] = said.substr(second + 1);
  }
  return web_json(document);
}

nlohmann::json planner_open_api() {
  const auto computes = [](const char* id, const char* about, const char* options) -> nlohmann::json {
    return {{"post",
             {{"operationId", id},
              {"summary", about},
              {"description", options},
              {"parameters",
               {{{"name", "X-Terrace-Action"},
                 {"in", "header"},
                 {"required", true},
                 {"schema", {{"type", "string"}}}}}},
              {"requestBody",
               {{"required", true}, {"content", {{planner_trace_type, {{"schema", {{"type", "string"}}}}}}}}},
              {"responses",
               {{"200",
                 {{"description", "As the command line's --json"},
                  {"content", {{"application/json", {{"schema", {{"type", "object"}}}}}}}}},
                {"default", {{"description", "{\"error\": {\"code\", \"message\"}}"}}}}}}}};
  };
  return {
      {"/api/v1/plan",
       computes("plan", "How much memory a pool would save: `terrace plan` of the trace that is sent",
                "Query: options of `terrace plan` without their dashes, and `name`, what the trace is called")},
      {"/api/v1/tiersim",
       computes("tiersim", "What policies would do: `terrace tiersim` of the trace that is sent",
                "Query: options of `terrace tiersim` without their dashes, `format`, and `name`")}};
}

}  // namespace terrace::daemon
