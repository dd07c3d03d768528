// SPDX-License-Identifier: Apache-2.0
// What a real driver does to a program whose context is lost: by a kernel, by a reset, by fork. Each case is a
// process of its own, since a loss is for good. Exits with 77 where there is no GPU.
//
// The kernel is PTX text, which the driver compiles: no toolkit is needed.
#define DOCTEST_CONFIG_IMPLEMENT
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "core/base/units.h"
#include "libclient/device/cuda/cuda_driver.h"
#include "terrace/device_replicas.h"

using namespace terrace;
namespace cuda = terrace::device::cuda;

namespace {

using Bytes = std::vector<std::byte>;

// In a child: doctest's reports are the parent's.
#define CHILD_CHECK(condition)                                             \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition); \
      ::_exit(1);                                                          \
    }                                                                      \
  } while (false)

template <typename Value>
Value must(Result<Value> result) {
  if (!result.ok()) std::fprintf(stderr, "%s\n", result.error().to_string().c_str());
  CHILD_CHECK(result.ok());
  return std::move(result).value();
}

bool is(const Status& status, ErrorCode code) {
  std::fprintf(stderr, "  %s\n", status.ok() ? "ok" : status.error().to_string().c_str());
  return !status.ok() && status.error().code == code;
}

template <typename Value>
bool is(const Result<Value>& result, ErrorCode code) {
  return is(result.ok() ? Status() : Status(result.error()), code);
}

// The exit status: 0 when `body` came to its end, and the program's end after it was clean.
int in_child(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(120);
    body();
    std::exit(0);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child ? status : -1;
}

// What the rest of a program, such as a framework, asks of the driver.
template <typename... Arguments>
int driver(const char* symbol, Arguments... arguments) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* const found = library == nullptr ? nullptr : ::dlsym(library, symbol);
  CHILD_CHECK(found != nullptr);
  const int code = reinterpret_cast<int (*)(Arguments...)>(found)(arguments...);
  if (code != 0) std::fprintf(stderr, "  %s: %d\n", symbol, code);
  return code;
}

constexpr const char* store_kernel = R"(
.version 6.0
.target sm_60
.address_size 64
.visible .entry store(.param .u64 where) {
  .reg .b64 %a;
  .reg .b32 %one;
  ld.param.u64 %a, [where];
  mov.u32 %one, 1;
  st.global.u32 [%a], %one;
  ret;
}
)";

void* retain_context() {
  void* context = nullptr;
  CHILD_CHECK(driver("cuDevicePrimaryCtxRetain", &context, 0) == 0);
  CHILD_CHECK(driver("cuCtxSetCurrent", context) == 0);
  return context;
}

// Stores a 1 there. Not waited for.
void launch_store(uint64_t where) {
  void *module = nullptr, *kernel = nullptr;
  CHILD_CHECK(driver("cuModuleLoadData", &module, static_cast<const void*>(store_kernel)) == 0);
  CHILD_CHECK(driver("cuModuleGetFunction", &kernel, module, "store") == 0);
  void* arguments[] = {&where};
  CHILD_CHECK(driver("cuLaunchKernel", kernel, 1u, 1u, 1u, 1u, 1u, 1u, 0u, static_cast<void*>(nullptr),
                     static_cast<void**>(arguments), static_cast<void**>(nullptr)) == 0);
}

std::atomic<int> told = 0;

std::shared_ptr<DeviceMemory> open() {
  CudaDeviceOptions options;
  options.on_lost = [](const Error&) { ++told; };
  return must(DeviceMemory::open_cuda(options));
}

// Of each kind one, to be dropped after the loss.
struct Used {
  std::shared_ptr<DeviceMemory> device = open();
  Bytes bytes = Bytes(8 * mib, std::byte{0x5a});
  std::unique_ptr<HostRegistration> registration = must(device->register_host(bytes, HostAccess::read_write));
  std::shared_ptr<DeviceBuffer> buffer = must(device->allocate(8 * mib, "buffer"));
  std::unique_ptr<DeviceStream> stream = must(device->make_stream());
  std::unique_ptr<DeviceReplicas> replicas = must(DeviceReplicas::make(device, {.budget_bytes = 64 * mib}));
  Replica replica = must(replicas->fetch({.id = 1, .name = "a", .bytes = bytes, .version_now = {}}, 2));

  Used() {
    CHILD_CHECK(registration->direct());
    CHILD_CHECK(must(stream->upload(buffer, 0, bytes)).wait().ok());
    Bytes staged(5 * mib);  // the stream's pinned buffers are there, too
    CHILD_CHECK(must(stream->upload(buffer, 0, staged)).wait().ok());
    CHILD_CHECK(replica.ready().wait().ok());
  }
  void check_lost() {
    CHILD_CHECK(is(device->health(), ErrorCode::io_error));
    CHILD_CHECK(is(device->allocate(4096, "weights"), ErrorCode::unavailable));
    CHILD_CHECK(is(device->use(), ErrorCode::unavailable));
    CHILD_CHECK(is(stream->upload(buffer, 0, bytes), ErrorCode::unavailable));
    CHILD_CHECK(is(device->make_stream(), ErrorCode::unavailable));
    CHILD_CHECK(!replicas->fetch({.id = 2, .name = "b", .bytes = bytes, .version_now = {}}, 2).ok());
    CHILD_CHECK(told == 1);
  }
};

}  // namespace

TEST_CASE("GPU: a kernel of ours runs, and its store is downloaded") {
  CHECK(in_child([] {
          Used used;
          retain_context();
          launch_store(used.buffer->address());
          CHILD_CHECK(driver("cuCtxSynchronize") == 0);
          uint32_t word = 0;
          std::span<std::byte> to(reinterpret_cast<std::byte*>(&word), sizeof word);
          CHILD_CHECK(must(used.stream->download(to, used.buffer, 0)).wait().ok());
          CHILD_CHECK(word == 1);
        }) == 0);
}

TEST_CASE("GPU: a kernel's illegal store is the device's loss, told once") {
  CHECK(in_child([] {
          Used used;
          retain_context();
          launch_store(0x10);
          (void)driver("cuCtxSynchronize");  // the program sees it itself, as well
          CHILD_CHECK(is(must(used.stream->upload(used.buffer, 0, used.bytes)).wait(), ErrorCode::io_error));
          used.check_lost();
        }) == 0);
}

TEST_CASE("GPU: of copies that are under way when a kernel breaks the device one tells it in full") {
  CHECK(in_child([] {
          Used used;
          retain_context();
          std::vector<DeviceEvent> events;
          for (int i = 0; i < 64; ++i) {
            auto event = used.stream->upload(used.buffer, 0, used.bytes);
            if (event.ok()) events.push_back(*event);
            if (i == 32) launch_store(0x10);
          }
          int in_full = 0;
          for (const DeviceEvent& event : events) {
            const Status status = event.wait();
            CHILD_CHECK(status.ok() || status.error().code == ErrorCode::io_error ||
                        status.error().code == ErrorCode::unavailable);
            if (!status.ok() && status.error().code == ErrorCode::io_error) ++in_full;
          }
          (void)driver("cuCtxSynchronize");
          if (in_full == 0) (void)used.device->use();  // all were done by then
          CHILD_CHECK(in_full <= 1);
          used.check_lost();
        }) == 0);
}

TEST_CASE("GPU: a context that the program resets is the device's loss, told once") {
  CHECK(in_child([] {
          Used used;
          CHILD_CHECK(driver("cuDevicePrimaryCtxReset_v2", 0) == 0);
          CHILD_CHECK(is(used.device->allocate(4096, "weights"), ErrorCode::io_error));
          used.check_lost();
        }) == 0);
}

TEST_CASE("GPU: a reset that a stream's copy meets first is the same") {
  CHECK(in_child([] {
          Used used;
          CHILD_CHECK(driver("cuDevicePrimaryCtxReset_v2", 0) == 0);
          CHILD_CHECK(is(must(used.stream->upload(used.buffer, 0, used.bytes)).wait(), ErrorCode::io_error));
          used.check_lost();
        }) == 0);
}

// The driver gives the new context the handle of the old one, and dies of the old one's streams.
TEST_CASE("GPU: after a reset the program's new memory is not freed with ours") {
  CHECK(in_child([] {
          auto used = std::make_unique<Used>();
          const uint64_t ours = used->buffer->address();
          CHILD_CHECK(driver("cuDevicePrimaryCtxReset_v2", 0) == 0);
          retain_context();
          std::vector<uint64_t> theirs;
          bool same = false;
          for (int i = 0; i < 16; ++i) {
            uint64_t address = 0;
            CHILD_CHECK(driver("cuMemAlloc_v2", &address, size_t{8 * mib}) == 0);
            theirs.push_back(address);
            same = same || address == ours;
          }
          std::fprintf(stderr, "  an address of ours is %sused again\n", same ? "" : "not ");
          CHILD_CHECK(is(used->device->allocate(4096, "weights"), ErrorCode::io_error));
          used->check_lost();
          used.reset();
          {
            // Of a new context a new device can be made.
            const auto device = open();
            const auto buffer = must(device->allocate(mib, "buffer"));
            Bytes bytes(mib, std::byte{7}), again(mib);
            const auto registration = must(device->register_host(bytes, HostAccess::read_write));
            CHILD_CHECK(registration->direct());
            const auto stream = must(device->make_stream());
            CHILD_CHECK(must(stream->upload(buffer, 0, bytes)).wait().ok());
            CHILD_CHECK(must(stream->download(again, buffer, 0)).wait().ok());
            CHILD_CHECK(bytes == again);
          }
          Bytes back(mib);
          for (const uint64_t address : theirs) {
            CHILD_CHECK(driver("cuMemcpyDtoH_v2", static_cast<void*>(back.data()), address, back.size()) == 0);
            CHILD_CHECK(driver("cuMemFree_v2", address) == 0);
          }
        }) == 0);
}

TEST_CASE("GPU: a child of fork is refused, drops its copies, and the parent goes on") {
  CHECK(in_child([] {
          auto used = std::make_unique<Used>();
          CHILD_CHECK(in_child([&] {
                        CHILD_CHECK(
                            is(used->stream->upload(used->buffer, 0, used->bytes), ErrorCode::unavailable));
                        used.reset();
                      }) == 0);
          CHILD_CHECK(must(used->stream->upload(used->buffer, 0, used->bytes)).wait().ok());
          CHILD_CHECK(used->device->health().ok());
        }) == 0);
}

int main(int argc, char** argv) {
  // Not in this process: a child of one that has used the driver could not.
  const int status = in_child([] {
    const auto opened = DeviceMemory::open_cuda({});
    if (opened.ok()) return;
    std::printf("skipped: no GPU (%s)\n", opened.error().to_string().c_str());
    std::exit(77);
  });
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) return 77;
  return doctest::Context(argc, argv).run();
}
