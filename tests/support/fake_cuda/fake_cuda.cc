// SPDX-License-Identifier: Apache-2.0
// A CUDA driver of host memory: the functions that Terrace uses, as a shared library, with faults to order.
//
// It behaves as the real one where that matters: copies happen later, on a thread a stream; a device's
// addresses are none of this process; a broken device answers every call with the same error; every call needs
// a current context; a copy must lie within one registration. Signatures are written in plain C types from the
// driver's reference, apart from those of the library under test.
#include "tests/support/fake_cuda/fake_cuda.h"

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

using terrace::test::FakeCuda;

namespace {

enum {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  no_device = 100,
  invalid_device = 101,
  no_context = 201,
  not_ready = 600,
  destroyed = 709
};
constexpr uint64_t device_tag = uint64_t{1} << 62;  // no address of a process

FakeCuda controls;
std::mutex memory_mutex;
std::map<uintptr_t, size_t> buffers, host_buffers, registered;
size_t allocated_bytes = 0;
thread_local std::vector<void*> contexts;
int context_of_device[8];

struct Mark {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
};

struct Event {
  std::mutex mutex;
  std::shared_ptr<Mark> mark;
};

class Stream {
 public:
  Stream() : thread_([this] { run(); }) {}
  ~Stream() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }
  void push(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    wake_.notify_all();
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [this] { return closing_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool closing_ = false;
  std::thread thread_;
};

// Streams and events of the context. The real driver dies of a stream that went with an earlier one.
std::set<void*> streams, events;

void add(std::set<void*>& made, void* handle) {
  const std::lock_guard lock(memory_mutex);
  made.insert(handle);
}

void remove(std::set<void*>& made, void* handle) {
  const std::lock_guard lock(memory_mutex);
  made.erase(handle);
}

bool alive(const std::set<void*>& made, void* handle) {
  const std::lock_guard lock(memory_mutex);
  if (made.count(handle) != 0) return true;
  ++controls.dead_handles;
  return false;
}

int ready() {
  if (const int broken = controls.broken; broken != 0) return broken;
  return contexts.empty() ? no_context : success;
}

// The entry that has all of [address, address + bytes).
bool inside(const std::map<uintptr_t, size_t>& ranges, uintptr_t address, size_t bytes) {
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return false;
  const auto& [begin, length] = *std::prev(after);
  return address - begin <= length && bytes <= length - (address - begin);
}

bool touches(const std::map<uintptr_t, size_t>& ranges, uintptr_t address, size_t bytes) {
  auto after = ranges.lower_bound(address + bytes);
  return after != ranges.begin() && std::prev(after)->first + std::prev(after)->second > address;
}

void wait_while(const std::atomic<bool>& hold) {
  ++controls.held;
  while (hold) std::this_thread::sleep_for(std::chrono::microseconds(100));
  --controls.held;
}

// Which kind of host memory it is; false: a copy that the driver refuses.
bool count_host_side(const void* host, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(host);
  const std::lock_guard lock(memory_mutex);
  if (inside(host_buffers, address, bytes)) {
    ++controls.staged_copies;
    if (bytes > controls.staged_bytes_max) controls.staged_bytes_max = bytes;
  } else if (inside(registered, address, bytes)) {
    ++controls.direct_copies;
  } else if (touches(registered, address, bytes)) {
    return false;  // over the edge of a registration
  } else {
    ++controls.pageable_copies;
  }
  return true;
}

void* host_of(uint64_t pointer) {
  return reinterpret_cast<void*>(pointer - device_tag);
}

int push_copy(void* stream, void* to, const void* from, size_t bytes, uint64_t device_part) {
  if (!alive(streams, stream)) return destroyed;
  {
    const std::lock_guard lock(memory_mutex);
    if (!inside(buffers, device_part - device_tag, bytes)) return invalid_value;
  }
  static_cast<Stream*>(stream)->push([to, from, bytes] {
    if (const uint32_t delay_us = controls.copy_delay_us; delay_us != 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
    }
    if (controls.broken != 0) return;
    int left = controls.lose_at_copy;
    while (left > 0 && !controls.lose_at_copy.compare_exchange_weak(left, left - 1)) {
    }
    if (left == 1) {
      controls.broken = controls.lost_code.load();
      return;
    }
    std::memcpy(to, from, bytes);
  });
  return success;
}

int wait_for(Event& event) {
  std::shared_ptr<Mark> mark;
  {
    const std::lock_guard lock(event.mutex);
    mark = event.mark;
  }
  if (mark != nullptr) {
    std::unique_lock lock(mark->mutex);
    mark->changed.wait(lock, [&] { return mark->done; });
  }
  return controls.broken;
}

std::shared_ptr<Mark> push_mark(void* stream) {
  auto mark = std::make_shared<Mark>();
  static_cast<Stream*>(stream)->push([mark] {
    const std::lock_guard lock(mark->mutex);
    mark->done = true;
    mark->changed.notify_all();
  });
  return mark;
}

struct Text {
  int code;
  const char *name, *text;
};
constexpr Text texts[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
     "system has unsupported display driver / cuda driver combination"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

}  // namespace

extern "C" {

FakeCuda* fake_cuda() {
  return &controls;
}

// As the end of a context: what was made in it goes.
void fake_cuda_drop() {
  for (void* stream : std::exchange(streams, {})) delete static_cast<Stream*>(stream);
  for (void* event : std::exchange(events, {})) delete static_cast<Event*>(event);
  const std::lock_guard lock(memory_mutex);
  for (const auto& [begin, bytes] : host_buffers) std::free(reinterpret_cast<void*>(begin));
  host_buffers.clear();
  for (const auto& [begin, bytes] : buffers) std::free(reinterpret_cast<void*>(begin));
  buffers.clear();
  registered.clear();
  allocated_bytes = 0;
  controls.buffers = controls.registered = controls.streams = controls.events = controls.host_buffers = 0;
}

// Another part of the program pins 64 KiB, and lets them go.
int fake_cuda_register(void* pointer) {
  const std::lock_guard lock(memory_mutex);
  registered[reinterpret_cast<uintptr_t>(pointer)] = 64 * 1024;
  ++controls.registered;
  return success;
}

void fake_cuda_unregister(void* pointer) {
  const std::lock_guard lock(memory_mutex);
  registered.erase(reinterpret_cast<uintptr_t>(pointer));
  --controls.registered;
}

int cuInit(unsigned int) {
  return controls.init_code;
}

int cuDriverGetVersion(int* version) {
  *version = 12040;
  return success;
}

int cuGetErrorName(int code, const char** text) {
  std::this_thread::sleep_for(std::chrono::microseconds(controls.text_delay_us));
  for (const Text& known : texts) {
    if (known.code == code) return *text = known.name, success;
  }
  *text = nullptr;
  return invalid_value;
}

int cuGetErrorString(int code, const char** text) {
  for (const Text& known : texts) {
    if (known.code == code) return *text = known.text, success;
  }
  *text = nullptr;
  return invalid_value;
}

int cuDeviceGetCount(int* count) {
  *count = controls.devices;
  return success;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return ordinal < controls.devices ? success : invalid_device;
}

int cuDeviceGetName(char* name, int bytes, int) {
  std::strncpy(name, "Fake GPU", static_cast<size_t>(bytes));
  return success;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
  if (attribute != 113) return invalid_value;
  *value = controls.read_only_registration ? 1 : 0;
  return success;
}

int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = controls.capacity_bytes;
  return success;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &context_of_device[device];
  ++controls.contexts;
  return success;
}

#ifndef FAKE_CUDA_OLD
int cuDevicePrimaryCtxRelease_v2(int) {
  --controls.contexts;
  return success;
}
#endif

int cuCtxPushCurrent_v2(void* context) {
  if (const int code = controls.context_code; code != 0) return code;
  contexts.push_back(context);
  ++controls.pushed;
  return success;
}

int cuCtxPopCurrent_v2(void** context) {
  if (contexts.empty()) return no_context;
  *context = contexts.back();
  contexts.pop_back();
  --controls.pushed;
  return success;
}

#ifndef FAKE_CUDA_OLD
int cuCtxGetId(void*, unsigned long long* id) {
  *id = controls.context_id;
  return *id == 0 ? destroyed : success;
}
#endif

int cuCtxSetCurrent(void* context) {
  if (const int code = controls.set_code; code != 0) return code;
  contexts.assign(1, context);
  return success;
}

int cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  if (const int code = ready(); code != success) return code;
  const std::lock_guard lock(memory_mutex);
  *total_bytes = controls.capacity_bytes;
  *free_bytes = *total_bytes - allocated_bytes;
  return success;
}

int cuMemAlloc_v2(unsigned long long* pointer, size_t bytes) {
  if (const int code = ready(); code != success) return code;
  const std::lock_guard lock(memory_mutex);
  if (bytes > controls.capacity_bytes - allocated_bytes) return out_of_memory;
  void* memory = std::malloc(bytes);
  buffers[reinterpret_cast<uintptr_t>(memory)] = bytes;
  allocated_bytes += bytes;
  ++controls.buffers;
  *pointer = reinterpret_cast<uintptr_t>(memory) + device_tag;
  return success;
}

int cuMemFree_v2(unsigned long long pointer) {
  if (contexts.empty()) return no_context;
  const std::lock_guard lock(memory_mutex);
  const auto found = buffers.find(pointer - device_tag);
  if (found == buffers.end()) return invalid_value;
  allocated_bytes -= found->second;
  buffers.erase(found);
  --controls.buffers;
  std::free(host_of(pointer));
  return controls.broken;
}

int cuMemHostAlloc(void** pointer, size_t bytes, unsigned int) {
  if (const int code = ready(); code != success) return code;
  if (const int code = controls.host_allocate_code; code != 0) return code;
  *pointer = std::malloc(bytes);
  const std::lock_guard lock(memory_mutex);
  host_buffers[reinterpret_cast<uintptr_t>(*pointer)] = bytes;
  ++controls.host_buffers;
  return success;
}

int cuMemFreeHost(void* pointer) {
  if (contexts.empty()) return no_context;
  const std::lock_guard lock(memory_mutex);
  if (host_buffers.erase(reinterpret_cast<uintptr_t>(pointer)) == 0) return invalid_value;
  --controls.host_buffers;
  std::free(pointer);
  return success;
}

int cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned int flags) {
  if (const int code = ready(); code != success) return code;
  if (const int code = controls.register_code; code != 0) return code;
  if (bytes > controls.register_bytes_max) return out_of_memory;
  if ((flags & 8u) != 0 && !controls.read_only_registration) return 801;
  wait_while(controls.hold_register);
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard lock(memory_mutex);
  if (touches(registered, address, bytes)) return 712;
  registered[address] = bytes;
  ++controls.registrations;
  ++controls.registered;
  return success;
}

int cuMemHostUnregister(void* pointer) {
  if (contexts.empty()) return no_context;
  wait_while(controls.hold_unregister);
  const std::lock_guard lock(memory_mutex);
  if (registered.erase(reinterpret_cast<uintptr_t>(pointer)) == 0) return invalid_value;
  --controls.registered;
  return controls.broken;
}

int cuMemcpyHtoDAsync_v2(unsigned long long to, const void* from, size_t bytes, void* stream) {
  if (const int code = ready(); code != success) return code;
  return count_host_side(from, bytes) ? push_copy(stream, host_of(to), from, bytes, to) : invalid_value;
}

int cuMemcpyDtoHAsync_v2(void* to, unsigned long long from, size_t bytes, void* stream) {
  if (const int code = ready(); code != success) return code;
  return count_host_side(to, bytes) ? push_copy(stream, to, host_of(from), bytes, from) : invalid_value;
}

int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void* stream) {
  if (const int code = ready(); code != success) return code;
  return push_copy(stream, host_of(to), host_of(from), bytes, from);
}

int cuMemcpyPeerAsync(unsigned long long to, void* to_context, unsigned long long from, void* from_context,
                      size_t bytes, void* stream) {
  if (const int code = ready(); code != success) return code;
  if (to_context == from_context) return invalid_value;
  ++controls.peer_copies;
  return push_copy(stream, host_of(to), host_of(from), bytes, from);
}

int cuStreamCreate(void** stream, unsigned int) {
  if (const int code = ready(); code != success) return code;
  *stream = new Stream;
  add(streams, *stream);
  ++controls.streams;
  return success;
}

int cuStreamSynchronize(void* stream) {
  if (contexts.empty()) return no_context;
  if (!alive(streams, stream)) return destroyed;
  const std::shared_ptr<Mark> mark = push_mark(stream);
  std::unique_lock lock(mark->mutex);
  mark->changed.wait(lock, [&] { return mark->done; });
  return controls.broken;
}

int cuStreamDestroy_v2(void* stream) {
  if (contexts.empty()) return no_context;
  if (!alive(streams, stream)) return destroyed;
  remove(streams, stream);
  delete static_cast<Stream*>(stream);
  --controls.streams;
  return success;
}

int cuEventCreate(void** event, unsigned int) {
  if (const int code = ready(); code != success) return code;
  *event = new Event;
  add(events, *event);
  ++controls.events;
  return success;
}

int cuEventRecord(void* event, void* stream) {
  if (const int code = ready(); code != success) return code;
  if (!alive(events, event) || !alive(streams, stream)) return destroyed;
  auto* recorded = static_cast<Event*>(event);
  const std::lock_guard lock(recorded->mutex);
  recorded->mark = push_mark(stream);
  return success;
}

int cuEventQuery(void* event) {
  if (contexts.empty()) return no_context;
  if (!alive(events, event)) return destroyed;
  auto* asked = static_cast<Event*>(event);
  const std::lock_guard lock(asked->mutex);
  if (asked->mark == nullptr) return controls.broken;
  const std::lock_guard mark_lock(asked->mark->mutex);
  return asked->mark->done ? controls.broken.load() : not_ready;
}

int cuEventSynchronize(void* event) {
  if (contexts.empty()) return no_context;
  if (!alive(events, event)) return destroyed;
  return wait_for(*static_cast<Event*>(event));
}

int cuEventDestroy_v2(void* event) {
  if (contexts.empty()) return no_context;
  if (!alive(events, event)) return destroyed;
  remove(events, event);
  delete static_cast<Event*>(event);
  --controls.events;
  return success;
}

}  // extern "C"
