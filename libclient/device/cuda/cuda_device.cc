// SPDX-License-Identifier: Apache-2.0
#include "libclient/device/cuda/cuda_device.h"

#include "core/base/units.h"
#include "libclient/device/capacity_errors.h"
#include "libclient/device/copy_operation.h"
#include "libclient/device/cuda/cuda_engine.h"
#include "libclient/device/cuda/dax_pages.h"
#include "libclient/device/stream_queue.h"

namespace terrace::device {
namespace {

constexpr const char* opening = "DeviceMemory::open_cuda";

class CudaBuffer final : public Allocation {
 public:
  CudaBuffer(std::shared_ptr<CudaDevice> device, uint64_t address, uint64_t bytes)
      : Allocation(device, address, bytes), device_(std::move(device)) {}
  ~CudaBuffer() override { device_->free(address(), bytes()); }

 private:
  std::shared_ptr<CudaDevice> device_;
};

class CudaRegistration final : public HostRegistration {
 public:
  explicit CudaRegistration(HostCover cover) : cover_(std::move(cover)) {}
  explicit CudaRegistration(std::string reason) : reason_(std::move(reason)) {}
  bool direct() const override { return !cover_.empty(); }
  const std::string& reason() const override { return reason_; }

 private:
  HostCover cover_;
  std::string reason_;
};

// The device `ordinal` of an initialised driver.
Result<cuda::Device> find_device(const CudaDriver& driver, int32_t ordinal) {
  int32_t count = 0;
  if (const cuda::Code code = driver.device_get_count(&count); code != cuda::Code::success) {
    return driver.error(code, opening, "the driver does not say how many devices there are");
  }
  cuda::Device device = 0;
  if (ordinal < 0 || ordinal >= count) {
    return Error{ErrorCode::not_found, 0, opening,
                 "no CUDA device " + std::to_string(ordinal) + ": there are " + std::to_string(count) +
                     " (CUDA_VISIBLE_DEVICES hides others)"};
  }
  if (const cuda::Code code = driver.device_get(&device, ordinal); code != cuda::Code::success) {
    return driver.error(code, opening, "CUDA device " + std::to_string(ordinal));
  }
  return device;
}

Result<DeviceInfo> describe(const CudaDriver& driver, cuda::Device device, int32_t ordinal) {
  char name[256] = "";
  size_t bytes = 0;
  DeviceInfo info;
  cuda::Code code = driver.device_get_name(name, sizeof name - 1, device);
  if (code == cuda::Code::success) code = driver.device_total_memory(&bytes, device);
  if (code == cuda::Code::success) code = driver.driver_get_version(&info.driver_version);
  if (code != cuda::Code::success) {
    return driver.error(code, opening, "CUDA device " + std::to_string(ordinal) + " cannot be asked");
  }
  info.kind = DeviceKind::cuda;
  info.ordinal = ordinal;
  info.name = name;
  info.capacity_bytes = bytes;
  info.description = "CUDA device " + std::to_string(ordinal) + " (" + info.name + "), " + format_size(bytes) +
                     ", driver of CUDA " + std::to_string(info.driver_version / 1000) + "." +
                     std::to_string(info.driver_version % 1000 / 10);
  return info;
}

}  // namespace

Result<DeviceUse> CudaDevice::use() const {
  const CudaContext::Current current(*context_);
  TERRACE_RETURN_IF_ERROR(current.status());
  size_t free_bytes = 0, total_bytes = 0;
  TERRACE_RETURN_IF_ERROR(context_->check(context_->driver().memory_info(&free_bytes, &total_bytes),
                                          "DeviceMemory::use", "free memory is not known"));
  return DeviceUse{.capacity_bytes = info_.capacity_bytes,
                   .free_bytes = free_bytes,
                   .allocated_bytes = allocated_bytes_.load(std::memory_order_relaxed)};
}

Result<std::shared_ptr<DeviceBuffer>> CudaDevice::allocate(uint64_t bytes, std::string_view what) {
  if (bytes == 0) return no_bytes(what);
  if (context_->lost()) return context_->lost_before("DeviceMemory::allocate");
  const CudaContext::Current current(*context_);
  TERRACE_RETURN_IF_ERROR(current.status());
  const CudaDriver& driver = context_->driver();
  cuda::DevicePointer pointer = 0;
  const cuda::Code code = driver.memory_allocate(&pointer, bytes);
  if (code == cuda::Code::out_of_memory) {
    size_t free_bytes = 0, total_bytes = 0;
    TERRACE_RETURN_IF_ERROR(context_->check(driver.memory_info(&free_bytes, &total_bytes),
                                            "DeviceMemory::allocate", "free memory is not known"));
    return not_enough_memory(what, bytes, free_bytes, total_bytes, context_->label());
  }
  TERRACE_RETURN_IF_ERROR(context_->check(code, "DeviceMemory::allocate", "no memory"));
  allocated_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  return std::shared_ptr<DeviceBuffer>(std::make_shared<CudaBuffer>(shared_from_this(), pointer, bytes));
}

void CudaDevice::free(uint64_t address, uint64_t bytes) {
  const CudaContext::Current current(*context_);
  // A lost device's memory goes with the process. That it was lost is told by whoever asks for something.
  if (current.status().ok()) (void)context_->driver().memory_free(address);
  allocated_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
}

Result<std::unique_ptr<DeviceStream>> CudaDevice::make_stream() {
  if (context_->lost()) return context_->lost_before("DeviceMemory::make_stream");
  auto engine = std::make_unique<CudaEngine>(context_, ranges_, staging_bytes_);
  TERRACE_RETURN_IF_ERROR(engine->make());
  return StreamQueue::make(shared_from_this(), std::move(engine));
}

Result<std::unique_ptr<HostRegistration>> CudaDevice::register_host(std::span<const std::byte> memory,
                                                                    HostAccess access) {
  if (memory.empty()) return nothing_to_register();
  if (context_->lost()) return context_->lost_before("DeviceMemory::register_host");
  std::string reason;
  if (access == HostAccess::read_only && !can_register_read_only_) {
    reason = context_->label() + " cannot register memory that is mapped for reading only";
  } else if (!register_dax_ && lies_on_dax(memory, ends_with_its_holder)) {
    reason =
        "pages of a dax device are not pinned: the fence of their lease would wait for it. Grant or attach the "
        "lease "
        "with on_fence kill (--on-fence kill): this process is ended before the fence, and may pin its memory";
  } else {
    auto cover = ranges_->add(
        context_,
        {.memory = memory, .piece_bytes = register_piece_bytes_, .read_only = access == HostAccess::read_only});
    if (cover.ok())
      return std::unique_ptr<HostRegistration>(std::make_unique<CudaRegistration>(std::move(*cover)));
    if (context_->lost()) return std::move(cover).error();
    reason = cover.error().detail;
  }
  return std::unique_ptr<HostRegistration>(std::make_unique<CudaRegistration>(std::move(reason)));
}

}  // namespace terrace::device

namespace terrace {

Result<std::shared_ptr<DeviceMemory>> DeviceMemory::open_cuda(const CudaDeviceOptions& options) {
  using namespace device;
  if (options.staging_bytes == 0 || options.register_piece_bytes == 0 ||
      options.register_piece_bytes % page_bytes() != 0) {
    return Error{ErrorCode::invalid_argument, 0, opening,
                 "staging_bytes must not be 0, register_piece_bytes must be whole pages"};
  }
  TERRACE_ASSIGN_OR_RETURN(const std::shared_ptr<const CudaDriver> driver,
                           CudaDriver::load(options.driver_library));
  if (const cuda::Code code = driver->init(0); code != cuda::Code::success) {
    return driver->error(code, opening, "the CUDA driver does not start");
  }
  TERRACE_ASSIGN_OR_RETURN(const cuda::Device device, find_device(*driver, options.ordinal));
  TERRACE_ASSIGN_OR_RETURN(DeviceInfo info, describe(*driver, device, options.ordinal));
  int32_t read_only = 0;
  // Unknown to drivers before CUDA 11.1, which say so by an error: then it cannot.
  if (driver->device_get_attribute(&read_only, cuda::attribute_read_only_host_register, device) !=
      cuda::Code::success) {
    read_only = 0;
  }
  const std::string label = "CUDA device " + std::to_string(options.ordinal) + " (" + info.name + ")";
  cuda::Context handle = nullptr;
  if (const cuda::Code code = driver->primary_context_retain(&handle, device); code != cuda::Code::success) {
    return driver->error(code, opening, label + " gives no context");
  }
  auto context = std::make_shared<CudaContext>(driver, device, handle, label, options.on_lost);
  return std::shared_ptr<DeviceMemory>(
      std::make_shared<CudaDevice>(options, std::move(info), std::move(context), read_only != 0));
}

}  // namespace terrace
