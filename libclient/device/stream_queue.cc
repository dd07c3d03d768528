// SPDX-License-Identifier: Apache-2.0
#include "libclient/device/stream_queue.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "core/base/signals_blocked.h"

namespace terrace::device {
namespace {

Error bad_part(const DeviceBuffer& buffer, uint64_t offset, uint64_t bytes) {
  return {ErrorCode::invalid_argument, 0, "DeviceStream",
          std::to_string(bytes) + " bytes at " + std::to_string(offset) + " are not inside a buffer of " +
              std::to_string(buffer.bytes()) + " bytes"};
}

Error in_child() {
  return {ErrorCode::unavailable, 0, "DeviceStream",
          "the stream belongs to the process that forked this one; make another device and stream here"};
}

// What callers have. In a forked child, which has neither the queue's thread nor whoever holds its mutex, it
// refuses, and goes away without the queue: destroying that would wait for the thread for ever.
class OwnStream final : public DeviceStream {
 public:
  explicit OwnStream(std::unique_ptr<StreamQueue> queue) : queue_(std::move(queue)) {}
  ~OwnStream() override {
    if (forked()) (void)queue_.release();
  }

  Result<DeviceEvent> upload(const std::shared_ptr<DeviceBuffer>& to, uint64_t to_offset,
                             std::span<const std::byte> from, Finish finish) override {
    if (forked()) return in_child();
    return queue_->upload(to, to_offset, from, std::move(finish));
  }
  Result<DeviceEvent> download(std::span<std::byte> to, const std::shared_ptr<DeviceBuffer>& from,
                               uint64_t from_offset, Finish finish) override {
    if (forked()) return in_child();
    return queue_->download(to, from, from_offset, std::move(finish));
  }
  Result<DeviceEvent> copy(const std::shared_ptr<DeviceBuffer>& to, uint64_t to_offset,
                           const std::shared_ptr<DeviceBuffer>& from, uint64_t from_offset, uint64_t bytes,
                           Finish finish) override {
    if (forked()) return in_child();
    return queue_->copy(to, to_offset, from, from_offset, bytes, std::move(finish));
  }
  DeviceEvent record() override {
    if (!forked()) return queue_->record();
    auto refused = std::make_shared<DeviceEvent::State>();
    refused->finish(in_child());
    return DeviceEvent(std::move(refused));
  }
  void wait(DeviceEvent event) override {
    if (!forked()) queue_->wait(std::move(event));
  }

 private:
  bool forked() const { return ::getpid() != process_; }

  std::unique_ptr<StreamQueue> queue_;
  const pid_t process_ = ::getpid();
};

bool for_engine(const CopyOperation& operation) {
  return operation.kind != CopyKind::record && operation.bytes != 0;
}

}  // namespace

Result<std::unique_ptr<DeviceStream>> StreamQueue::make(std::shared_ptr<DeviceMemory> device,
                                                        std::unique_ptr<CopyEngine> engine) {
  std::unique_ptr<StreamQueue> made(new StreamQueue(std::move(device), std::move(engine)));
  TERRACE_RETURN_IF_ERROR(made->start());
  return std::unique_ptr<DeviceStream>(std::make_unique<OwnStream>(std::move(made)));
}

Status StreamQueue::start() {
  try {
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    return Error{ErrorCode::limit_exceeded, error.code().value(), "DeviceMemory::make_stream",
                 "no thread for a stream's copies: fix the limit of processes (ulimit -u)"};
  }
  return {};
}

StreamQueue::~StreamQueue() {
  {
    const MutexLock lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Result<std::shared_ptr<Allocation>> StreamQueue::check(const std::shared_ptr<DeviceBuffer>& buffer,
                                                       uint64_t offset, uint64_t bytes,
                                                       bool may_be_a_peer) const {
  const auto allocation = std::dynamic_pointer_cast<Allocation>(buffer);
  const bool ours = allocation != nullptr && &allocation->owner() == device_.get();
  // The driver copies between its own devices.
  const bool peer = allocation != nullptr && may_be_a_peer && device_->info().kind == DeviceKind::cuda &&
                    allocation->owner().info().kind == DeviceKind::cuda;
  if (!ours && !peer) {
    return Error{ErrorCode::invalid_argument, 0, "DeviceStream",
                 "the buffer is not one of the stream's device"};
  }
  if (offset > buffer->bytes() || bytes > buffer->bytes() - offset) return bad_part(*buffer, offset, bytes);
  if (const Status health = device_->health(); !health.ok()) {
    return Error{ErrorCode::unavailable, 0, "DeviceStream", "the device was lost: " + health.error().detail};
  }
  return allocation;
}

Result<DeviceEvent> StreamQueue::upload(const std::shared_ptr<DeviceBuffer>& to, uint64_t to_offset,
                                        std::span<const std::byte> from, Finish finish) {
  CopyOperation operation;
  TERRACE_ASSIGN_OR_RETURN(operation.to, check(to, to_offset, from.size(), false));
  operation.kind = CopyKind::upload;
  operation.device_to = to->address() + to_offset;
  operation.host_from = from.data();
  operation.bytes = from.size();
  operation.finish = std::move(finish);
  return enqueue(std::move(operation));
}

Result<DeviceEvent> StreamQueue::download(std::span<std::byte> to, const std::shared_ptr<DeviceBuffer>& from,
                                          uint64_t from_offset, Finish finish) {
  CopyOperation operation;
  TERRACE_ASSIGN_OR_RETURN(operation.from, check(from, from_offset, to.size(), false));
  operation.kind = CopyKind::download;
  operation.device_from = from->address() + from_offset;
  operation.host_to = to.data();
  operation.bytes = to.size();
  operation.finish = std::move(finish);
  return enqueue(std::move(operation));
}

Result<DeviceEvent> StreamQueue::copy(const std::shared_ptr<DeviceBuffer>& to, uint64_t to_offset,
                                      const std::shared_ptr<DeviceBuffer>& from, uint64_t from_offset,
                                      uint64_t bytes, Finish finish) {
  CopyOperation operation;
  TERRACE_ASSIGN_OR_RETURN(operation.to, check(to, to_offset, bytes, false));
  TERRACE_ASSIGN_OR_RETURN(operation.from, check(from, from_offset, bytes, true));
  operation.kind = CopyKind::copy;
  operation.device_to = to->address() + to_offset;
  operation.device_from = from->address() + from_offset;
  operation.bytes = bytes;
  operation.finish = std::move(finish);
  return enqueue(std::move(operation));
}

DeviceEvent StreamQueue::record() {
  return enqueue({});
}

void StreamQueue::wait(DeviceEvent event) {
  CopyOperation operation;
  operation.kind = CopyKind::wait;
  operation.awaited = std::move(event);
  enqueue(std::move(operation));
}

DeviceEvent StreamQueue::enqueue(CopyOperation operation) {
  operation.event = std::make_shared<DeviceEvent::State>();
  operation.ready_at = std::chrono::steady_clock::now();
  DeviceEvent event(operation.event);
  {
    const MutexLock lock(mutex_);
    queue_.push_back(std::move(operation));
  }
  wake_.notify_one();
  return event;
}

void StreamQueue::run() {
  ::pthread_setname_np(::pthread_self(), "terrace-copy");
  engine_->enter();
  while (true) {
    ReleasableMutexLock lock(mutex_);
    if (begun_.empty())
      wake_.wait(mutex_, [this]() TERRACE_REQUIRES(mutex_) { return closing_ || !queue_.empty(); });
    if (!queue_.empty() && begun_.size() < engine_->depth()) {
      CopyOperation next = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      finish_done();
      begin(std::move(next));
      continue;
    }
    lock.unlock();
    if (begun_.empty()) return;  // closing
    finish_oldest();
  }
}

void StreamQueue::begin(CopyOperation operation) {
  if (operation.kind == CopyKind::wait) {
    // What was begun must not wait for the event: it may be what another stream waits for before it.
    finish_all();
    (void)operation.awaited.wait();
    waited_until_ = std::chrono::steady_clock::now();
    operation.event->finish({});
    return;
  }
  operation.ready_at = std::max(operation.ready_at, waited_until_);
  if (for_engine(operation)) {
    operation.begun = engine_->begin(operation, [this] { finish_oldest(); });
  }
  begun_.push_back(std::move(operation));
}

void StreamQueue::finish_oldest() {
  CopyOperation operation = std::move(begun_.front());
  begun_.pop_front();
  Status status = std::move(operation.begun);
  if (status.ok() && for_engine(operation)) status = engine_->finish_oldest();
  operation.to.reset();  // Q2
  operation.from.reset();
  if (operation.finish) status = operation.finish(std::move(status));
  operation.finish = nullptr;
  operation.event->finish(std::move(status));
}

// What is done is told before the next is begun, which may take long.
void StreamQueue::finish_done() {
  while (!begun_.empty()) {
    const CopyOperation& oldest = begun_.front();
    if (for_engine(oldest) && oldest.begun.ok() && !engine_->oldest_is_done()) return;
    finish_oldest();
  }
}

void StreamQueue::finish_all() {
  while (!begun_.empty()) finish_oldest();
}

}  // namespace terrace::device
