#include "daemon/events/sinks/event_webhook.h"

#include <kj/debug.h>

#include <algorithm>
#include <utility>

#include "daemon/events/sinks/event_text.h"
#include "daemon/log/log.h"

namespace terrace::daemon {

EventWebhook::EventWebhook(EventWebhookOptions options, std::string run, kj::Network& network, kj::Timer& timer)
    : options_(std::move(options)),
      run_(std::move(run)),
      timer_(timer),
      headers_(header_names_.build()),
      pause_(options_.pause_min),
      tasks_(*this) {
  kj::Maybe<kj::Network&> secure;
  if (options_.url.starts_with("https://")) {
    kj::TlsContext::Options trust;
    trust.useSystemTrustStore = true;
    tls_ = kj::heap<kj::TlsContext>(kj::mv(trust));
    tls_network_ = tls_->wrapNetwork(network);
    secure = *tls_network_;
  }
  client_ = kj::newHttpClient(timer, *headers_, network, secure);
}

EventWebhook::~EventWebhook() noexcept = default;

void EventWebhook::taskFailed(kj::Exception&& exception) {
  sending_ = false;  // the next event begins anew
  log::error("webhook: {}", exception.getDescription().cStr());
}

void EventWebhook::append(const Event& event) {
  std::string text = event_json(event, run_);
  if (waiting_bytes_ + text.size() > options_.waiting_bytes_max) {
    // What tells of events that were left out must not be one more, for ever.
    if (event.kind != EventKind::events_dropped) ++left_out_;
    return;
  }
  waiting_bytes_ += text.size();
  waiting_.push_back(std::move(text));
  if (std::exchange(sending_, true)) return;
  tasks_.add(timer_.afterDelay(options_.gather).then([this] { return send_all(); }));
}

kj::Promise<void> EventWebhook::send_all() {
  if (waiting_.empty()) {
    sending_ = false;
    return kj::READY_NOW;
  }
  return send_one().then([this] { return send_all(); });
}

std::string EventWebhook::take_batch(size_t& count) const {
  count = std::min(waiting_.size(), options_.batch_events_max);
  std::string body = "{\"run\": \"" + run_ + "\", \"events\": [";
  for (size_t i = 0; i < count; ++i) body += (i == 0 ? "" : ", ") + waiting_[i];
  return body + "]}\n";
}

kj::Promise<unsigned> EventWebhook::post(const std::string& body) {
  kj::HttpHeaders headers(*headers_);
  headers.set(kj::HttpHeaderId::CONTENT_TYPE, "application/json");
  auto request = client_->request(kj::HttpMethod::POST, options_.url.c_str(), headers, body.size());
  auto written = request.body->write(body.data(), body.size());
  return written
      .then([stream = kj::mv(request.body), response = kj::mv(request.response)]() mutable {
        stream = nullptr;  // the end of what is sent
        return kj::mv(response);
      })
      .then([](kj::HttpClient::Response&& answer) -> unsigned { return answer.statusCode; });
}

kj::Promise<void> EventWebhook::send_one() {
  size_t count = 0;
  auto body = kj::heap<std::string>(take_batch(count));
  auto late = timer_.afterDelay(options_.answer_max).then([]() -> unsigned {
    kj::throwFatalException(KJ_EXCEPTION(DISCONNECTED, "it gives no answer"));
  });
  return kj::evalNow([&] { return post(*body); })
      .exclusiveJoin(kj::mv(late))
      .attach(kj::mv(body))
      .then(
          [this, count](unsigned status) {
            const bool sent = status >= 200 && status < 300;
            const bool later = status == 408 || status == 429 || status >= 500;
            ended(sent    ? Outcome::sent
                  : later ? Outcome::failed
                          : Outcome::refused,
                  count, "it answers with the status " + std::to_string(status));
          },
          [this, count](kj::Exception&& exception) {
            ended(Outcome::failed, count, exception.getDescription().cStr());
          })
      .then([this]() -> kj::Promise<void> {
        if (!failing_) return kj::READY_NOW;
        const kj::Duration pause = pause_;
        pause_ = std::min(pause_ * 2, options_.pause_max);
        return timer_.afterDelay(pause);
      });
}

void EventWebhook::ended(Outcome outcome, size_t count, const std::string& what) {
  if (outcome == Outcome::failed) {
    if (!std::exchange(failing_, true)) log::error("webhook {}: {}; events wait for it", options_.url, what);
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
  }
  pause_ = options_.pause_min;
  if (outcome == Outcome::refused) {
    left_out_ += count;
    log::error("webhook {}: {}; {} events are not sent to it", options_.url, what, count);
  }
  if (std::exchange(failing_, false)) log::info("webhook {} takes events again", options_.url);
}

}  // namespace terrace::daemon
