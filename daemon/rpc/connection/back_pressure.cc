// SPDX-License-Identifier: Apache-2.0
#include "daemon/rpc/connection/back_pressure.h"

namespace terrace::daemon {
namespace {

uint64_t bytes_of(kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) {
  uint64_t words = 0;
  for (const auto segment : segments) words += segment.size();
  return words * sizeof(capnp::word);
}

}  // namespace

capnp::ReaderOptions message_bounds(uint64_t bytes_max) {
  capnp::ReaderOptions options;
  options.traversalLimitInWords = bytes_max / sizeof(capnp::word);
  options.nestingLimit = 32;
  return options;
}

kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>> BackPressureStream::tryReadMessage(
    kj::ArrayPtr<kj::AutoCloseFd> fds, capnp::ReaderOptions options, kj::ArrayPtr<capnp::word> scratch) {
  if (writing_ == 0) {
    return capnp::tryReadMessage(input_, message_bounds(message_bytes_max_), scratch)
        .then([this](kj::Maybe<kj::Own<capnp::MessageReader>> read)
                  -> kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>> {
          KJ_IF_MAYBE (message, read) return in_turn(kj::mv(*message));
          return kj::Maybe<capnp::MessageReaderAndFds>(nullptr);
        });
  }
  auto pair = kj::newPromiseAndFulfiller<void>();
  written_ = kj::mv(pair.fulfiller);
  return pair.promise.then([this, fds, options, scratch] { return tryReadMessage(fds, options, scratch); });
}

kj::Promise<kj::Maybe<capnp::MessageReaderAndFds>> BackPressureStream::in_turn(
    kj::Own<capnp::MessageReader> message) {
  using Read = kj::Maybe<capnp::MessageReaderAndFds>;
  if (turns_ != nullptr && !(read_in_turns_ != nullptr && read_in_turns_->had_turn())) {
    KJ_IF_MAYBE (later, turns_->take(key_())) {
      return later->then([message = kj::mv(message)]() mutable -> Read {
        return capnp::MessageReaderAndFds{kj::mv(message), nullptr};
      });
    }
  }
  return Read(capnp::MessageReaderAndFds{kj::mv(message), nullptr});
}

kj::Promise<void> BackPressureStream::writeMessage(
    kj::ArrayPtr<const int> fds, kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>> segments) {
  kj::Promise<void> write = counted(inner_->writeMessage(fds, segments), bytes_of(segments));
  if (fds.size() == 0 || carried_ == nullptr) return write;
  return write.attach(kj::defer([this, sent = kj::heapArray<int>(fds)] { carried_->written(sent); }));
}

kj::Promise<void> BackPressureStream::writeMessages(
    kj::ArrayPtr<kj::ArrayPtr<const kj::ArrayPtr<const capnp::word>>> messages) {
  uint64_t bytes = 0;
  for (const auto segments : messages) bytes += bytes_of(segments);
  return counted(inner_->writeMessages(messages), bytes);
}

kj::Promise<void> BackPressureStream::counted(kj::Promise<void> write, uint64_t bytes) {
  ++writing_;
  const PeerKey key = key_();
  peers_.answer_made(key, bytes);
  return write.attach(kj::defer([this, key, bytes] {
    sweeps_without_progress_ = 0;
    peers_.answer_taken(key, bytes);
    if (--writing_ == 0 && written_.get() != nullptr) kj::mv(written_)->fulfill();
  }));
}

bool BackPressureStream::stalled(uint64_t sweeps) {
  if (writing_ == 0) sweeps_without_progress_ = 0;
  return sweeps_without_progress_++ >= sweeps;
}

kj::Promise<void> BackPressureStream::until_stalled(kj::Timer& timer) {
  const auto pause = static_cast<int64_t>(peers_.peer_options().write_stall_ns_max / sweeps_a_stall);
  return timer.afterDelay(pause * kj::NANOSECONDS).then([this, &timer]() -> kj::Promise<void> {
    if (stalled(sweeps_a_stall)) return kj::READY_NOW;
    return until_stalled(timer);
  });
}

}  // namespace terrace::daemon
