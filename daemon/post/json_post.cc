// SPDX-License-Identifier: Apache-2.0
#include "daemon/post/json_post.h"

#include <kj/debug.h>

#include <algorithm>
#include <utility>

#include "daemon/log/log.h"

namespace terrace::daemon {

JsonPost::JsonPost(JsonPostOptions options, kj::Network& network, kj::Timer& timer)
    : options_(std::move(options)),
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

JsonPost::~JsonPost() noexcept = default;

void JsonPost::taskFailed(kj::Exception&& exception) {
  sending_ = false;  // the next piece begins anew
  under_way_ = 0;
  log::error("{} {}: {}", options_.who, options_.url, exception.getDescription().cStr());
}

bool JsonPost::append(std::string piece) {
  if (waiting_bytes_ + piece.size() > options_.waiting_bytes_max) {
    if (options_.full == JsonPostOptions::Full::refuse_new) return false;
    while (waiting_.size() > under_way_ && waiting_bytes_ + piece.size() > options_.waiting_bytes_max)
      drop_oldest();
    if (waiting_bytes_ + piece.size() > options_.waiting_bytes_max) {
      ++left_out_;
      return false;
    }
  }
  waiting_bytes_ += piece.size();
  waiting_.push_back(std::move(piece));
  if (std::exchange(sending_, true)) return true;
  tasks_.add(timer_.afterDelay(options_.gather).then([this] { return send_all(); }));
  return true;
}

// Of those that are in no request: what was sent is not to be counted as left out.
void JsonPost::drop_oldest() {
  const auto oldest = waiting_.begin() + static_cast<std::ptrdiff_t>(under_way_);
  waiting_bytes_ -= oldest->size();
  waiting_.erase(oldest);
  ++left_out_;
}

kj::Promise<void> JsonPost::send_all() {
  if (waiting_.empty()) {
    sending_ = false;
    return kj::READY_NOW;
  }
  return send_one().then([this] { return send_all(); });
}

std::string JsonPost::take_batch() {
  under_way_ = std::min(waiting_.size(), options_.batch_max);
  std::string body = options_.head;
  for (size_t i = 0; i < under_way_; ++i) body += (i == 0 ? "" : ", ") + waiting_[i];
  return body + options_.tail;
}

kj::Promise<unsigned> JsonPost::post(const std::string& body) {
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

kj::Promise<void> JsonPost::send_one() {
  auto body = kj::heap<std::string>(take_batch());
  auto late = timer_.afterDelay(options_.answer_max).then([]() -> unsigned {
    kj::throwFatalException(KJ_EXCEPTION(DISCONNECTED, "it gives no answer"));
  });
  return kj::evalNow([&] { return post(*body); })
      .exclusiveJoin(kj::mv(late))
      .attach(kj::mv(body))
      .then(
          [this](unsigned status) {
            const bool sent = status >= 200 && status < 300;
            const bool later = status == 408 || status == 429 || status >= 500;
            ended(sent    ? Outcome::sent
                  : later ? Outcome::failed
                          : Outcome::refused,
                  "it answers with the status " + std::to_string(status));
          },
          [this](kj::Exception&& exception) { ended(Outcome::failed, exception.getDescription().cStr()); })
      .then([this]() -> kj::Promise<void> {
        if (!failing_) return kj::READY_NOW;
        const kj::Duration pause = pause_;
        pause_ = std::min(pause_ * 2, options_.pause_max);
        return timer_.afterDelay(pause);
      });
}

void JsonPost::ended(Outcome outcome, const std::string& what) {
  const size_t count = std::exchange(under_way_, 0);
  if (outcome == Outcome::failed) {
    if (!std::exchange(failing_, true))
      log::error("{} {}: {}; {} wait for it", options_.who, options_.url, what, options_.what);
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    waiting_bytes_ -= waiting_.front().size();
    waiting_.pop_front();
  }
  pause_ = options_.pause_min;
  if (outcome == Outcome::refused) {
    left_out_ += count;
    log::error("{} {}: {}; {} {} are not sent to it", options_.who, options_.url, what, count, options_.what);
  }
  if (std::exchange(failing_, false))
    log::info("{} {} takes {} again", options_.who, options_.url, options_.what);
}

}  // namespace terrace::daemon
