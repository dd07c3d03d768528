// SPDX-License-Identifier: Apache-2.0
#include "core/os/file_view.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

namespace terrace::os {

FileView::FileView(FileView&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      takes_stores_(other.takes_stores_) {}

FileView& FileView::operator=(FileView&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(takes_stores_, other.takes_stores_);
  return *this;
}

FileView::~FileView() {
  if (data_ != nullptr) ::munmap(data_, static_cast<size_t>(bytes_));
}

Result<FileView> FileView::map(int fd, uint64_t bytes, const std::string& name) {
  FileView view;
  if (bytes == 0) return view;
  // NORESERVE: a model may be larger than what the system would promise for stores that nobody makes.
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) {
    data = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
    view.takes_stores_ = false;
  }
  if (data == MAP_FAILED) return os_error(errno, "FileView::map", name + ": cannot be mapped");
  view.data_ = static_cast<std::byte*>(data);
  view.bytes_ = bytes;
  return view;
}

}  // namespace terrace::os
