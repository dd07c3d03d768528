// SPDX-License-Identifier: Apache-2.0
#include "libclient/device/cuda/cuda_engine.h"

#include <algorithm>
#include <chrono>

#include "libclient/device/cuda/cuda_device.h"
#include "libclient/device/guarded.h"

namespace terrace::device {
namespace {

constexpr std::chrono::microseconds spin(20);

}  // namespace

Status CudaEngine::make() {
  const CudaContext::Current current(*context_);
  TERRACE_RETURN_IF_ERROR(current.status());
  const CudaDriver& driver = context_->driver();
  // Not ordered with the legacy default stream: frameworks that use it would wait for our copies.
  TERRACE_RETURN_IF_ERROR(check(driver.stream_create(&stream_, cuda::stream_non_blocking), "no stream"));
  constexpr uint32_t flags = cuda::event_blocking_sync | cuda::event_disable_timing;
  for (cuda::Event& event : events_) {
    TERRACE_RETURN_IF_ERROR(check(driver.event_create(&event, flags), "no event"));
  }
  for (Staging& staging : staging_) {
    TERRACE_RETURN_IF_ERROR(check(driver.event_create(&staging.event, flags), "no event"));
  }
  return {};
}

CudaEngine::~CudaEngine() {
  const CudaContext::Current current(*context_);
  if (!current.status().ok()) return;  // went with the context
  const CudaDriver& driver = context_->driver();
  if (stream_ != nullptr) (void)driver.stream_synchronize(stream_);
  for (cuda::Event event : events_) {
    if (event != nullptr) (void)driver.event_destroy(event);
  }
  for (Staging& staging : staging_) {
    if (staging.event != nullptr) (void)driver.event_destroy(staging.event);
    if (staging.memory != nullptr) (void)driver.host_free(staging.memory);
  }
  if (stream_ != nullptr) (void)driver.stream_destroy(stream_);
}

Status CudaEngine::begin(const CopyOperation& operation, const std::function<void()>& finish) {
  if (context_->lost()) return context_->lost_before("DeviceStream");
  TERRACE_RETURN_IF_ERROR(entered_);
  TERRACE_RETURN_IF_ERROR(context_->still_there());
  HostCover cover;
  const cuda::Event event = events_[begun_count_ % depth_max];
  finish_ = &finish;
  Status status = issue(operation, cover);
  if (status.ok()) status = check(context_->driver().event_record(event, stream_), "no event for a copy");
  if (!status.ok()) {
    while (!begun_.empty()) finish();
    // Part of it may be under way: buffers and host memory are let go after this.
    if (context_->still_there().ok()) (void)context_->driver().stream_synchronize(stream_);
    return status;
  }
  ++begun_count_;
  begun_.push_back({event, std::move(cover)});
  return {};
}

Status CudaEngine::issue(const CopyOperation& operation, HostCover& cover) {
  if (operation.kind == CopyKind::copy) return copy_in_device(operation);
  const bool down = operation.kind == CopyKind::download;
  const std::byte* host = down ? operation.host_to : operation.host_from;
  cover = ranges_->find(host, operation.bytes, down);
  if (!cover.empty()) return copy_direct(operation, cover);
  TERRACE_RETURN_IF_ERROR(prepare_staging());
  return down ? download_staged(operation) : upload_staged(operation);
}

Status CudaEngine::copy_in_device(const CopyOperation& operation) {
  const auto context_of = [](const Allocation& allocation) {
    return static_cast<CudaDevice&>(allocation.owner()).context().handle();  // StreamQueue has looked
  };
  const cuda::Context from = context_of(*operation.from);
  const CudaDriver& driver = context_->driver();
  if (from == context_->handle()) {
    return check(driver.copy_in_device(operation.device_to, operation.device_from, operation.bytes, stream_),
                 "a copy within the device failed");
  }
  return check(driver.copy_to_peer(operation.device_to, context_->handle(), operation.device_from, from,
                                   operation.bytes, stream_),
               "a copy from another device failed");
}

Status CudaEngine::copy_direct(const CopyOperation& operation, const HostCover& cover) {
  const CudaDriver& driver = context_->driver();
  const bool down = operation.kind == CopyKind::download;
  const auto host = reinterpret_cast<uintptr_t>(down ? operation.host_to : operation.host_from);
  for (uint64_t done = 0; done < operation.bytes;) {
    const uint64_t bytes = bytes_of_one_copy(cover, host + done, operation.bytes - done);
    TERRACE_RETURN_IF_ERROR(down ? check(driver.copy_to_host(operation.host_to + done,
                                                             operation.device_from + done, bytes, stream_),
                                         "a copy to host memory failed")
                                 : check(driver.copy_to_device(operation.device_to + done,
                                                               operation.host_from + done, bytes, stream_),
                                         "a copy to the device failed"));
    done += bytes;
  }
  return {};
}

Status CudaEngine::prepare_staging() {
  for (Staging& staging : staging_) {
    if (staging.memory != nullptr) continue;
    TERRACE_RETURN_IF_ERROR(
        check(context_->driver().host_allocate(&staging.memory, staging_bytes_, cuda::host_alloc_portable),
              "no pinned memory to stage copies of memory that is not registered"));
  }
  return {};
}

Status CudaEngine::record_use(Staging& staging) {
  TERRACE_RETURN_IF_ERROR(
      check(context_->driver().event_record(staging.event, stream_), "no event for a staged copy"));
  staging.in_use = true;
  staging.begun_before = begun_count_;
  return {};
}

Status CudaEngine::wait_for(Staging& staging) {
  if (!staging.in_use) return {};
  // Q3: the stream's order has these done before the buffer is.
  while (begun_count_ - begun_.size() < staging.begun_before) (*finish_)();
  staging.in_use = false;
  return check(context_->driver().event_synchronize(staging.event), "a staged copy failed");
}

// The copy into one buffer runs beside the device's copy out of the other.
Status CudaEngine::upload_staged(const CopyOperation& operation) {
  const CudaDriver& driver = context_->driver();
  size_t turn = 0;
  for (uint64_t done = 0; done < operation.bytes; ++turn) {
    Staging& staging = staging_[turn % 2];
    const uint64_t bytes = std::min(staging_bytes_, operation.bytes - done);
    TERRACE_RETURN_IF_ERROR(wait_for(staging));  // E1
    TERRACE_RETURN_IF_ERROR(copy_staged_bytes(staging.memory, operation.host_from + done, bytes));
    TERRACE_RETURN_IF_ERROR(
        check(driver.copy_to_device(operation.device_to + done, staging.memory, bytes, stream_),
              "a staged copy to the device failed"));
    TERRACE_RETURN_IF_ERROR(record_use(staging));
    done += bytes;
  }
  return {};
}

Status CudaEngine::download_staged(const CopyOperation& operation) {
  const CudaDriver& driver = context_->driver();
  const uint64_t pieces = (operation.bytes + staging_bytes_ - 1) / staging_bytes_;
  const auto piece_at = [&](uint64_t piece) {
    return std::min(staging_bytes_, operation.bytes - piece * staging_bytes_);
  };
  // One piece further than what is taken out is on its way.
  for (uint64_t piece = 0; piece <= pieces; ++piece) {
    if (piece < pieces) {
      Staging& staging = staging_[piece % 2];
      TERRACE_RETURN_IF_ERROR(wait_for(staging));  // E1
      TERRACE_RETURN_IF_ERROR(
          check(driver.copy_to_host(staging.memory, operation.device_from + piece * staging_bytes_,
                                    piece_at(piece), stream_),
                "a staged copy to host memory failed"));
      TERRACE_RETURN_IF_ERROR(record_use(staging));
    }
    if (piece > 0) {
      Staging& arrived = staging_[(piece - 1) % 2];
      TERRACE_RETURN_IF_ERROR(wait_for(arrived));
      TERRACE_RETURN_IF_ERROR(copy_staged_bytes(operation.host_to + (piece - 1) * staging_bytes_,
                                                arrived.memory, piece_at(piece - 1)));
    }
  }
  return {};
}

bool CudaEngine::oldest_is_done() {
  if (!context_->still_there().ok()) return true;
  return context_->driver().event_query(begun_.front().event) != cuda::Code::not_ready;  // or failed: told then
}

Status CudaEngine::finish_oldest() {
  const Begun oldest = std::move(begun_.front());
  begun_.pop_front();
  TERRACE_RETURN_IF_ERROR(context_->still_there());
  const CudaDriver& driver = context_->driver();
  // A small copy is done before a thread could be put to sleep and woken.
  const auto until = std::chrono::steady_clock::now() + spin;
  while (driver.event_query(oldest.event) == cuda::Code::not_ready) {
    if (std::chrono::steady_clock::now() > until) break;
  }
  return check(driver.event_synchronize(oldest.event), "a copy failed");
}

}  // namespace terrace::device
