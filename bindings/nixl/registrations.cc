// SPDX-License-Identifier: Apache-2.0
#include "bindings/nixl/registrations.h"

#include <cctype>

#include "bindings/nixl/copy_job.h"
#include "bindings/nixl/settings.h"

namespace terrace::nixl {
namespace {

constexpr size_t shown_bytes_max = 100;

}  // namespace

void NoncoherentMemory::add(const Registration& one) {
  const MutexLock lock(mutex_);
  if (one.leased && !one.leased->coherent) all_.insert(&one);
}

void NoncoherentMemory::remove(const Registration& one) {
  const MutexLock lock(mutex_);
  all_.erase(&one);
}

void NoncoherentMemory::publish_all() {
  const MutexLock lock(mutex_);
  for (const Registration* one : all_) publish(reinterpret_cast<const std::byte*>(one->address), one->bytes);
}

void NoncoherentMemory::acquire_all() {
  const MutexLock lock(mutex_);
  for (const Registration* one : all_) acquire(reinterpret_cast<const std::byte*>(one->address), one->bytes);
}

nixl_status_t status_of(const Error& error) {
  switch (error.code) {
    case ErrorCode::invalid_argument: return NIXL_ERR_INVALID_PARAM;
    case ErrorCode::not_found: return NIXL_ERR_NOT_FOUND;
    case ErrorCode::permission_denied: return NIXL_ERR_NOT_ALLOWED;
    case ErrorCode::limit_exceeded:
    case ErrorCode::corrupt: return NIXL_ERR_MISMATCH;
    case ErrorCode::unsupported: return NIXL_ERR_NOT_SUPPORTED;
    default: return NIXL_ERR_BACKEND;
  }
}

nixl_status_t fail(const Error& error) {
  complain(error.to_string());
  return status_of(error);
}

nixl_status_t fail(nixl_status_t status, const std::string& text) {
  complain(text);
  return status;
}

std::string shown(const std::string& key) {
  std::string text;
  for (const char one : key.substr(0, shown_bytes_max)) {
    const auto value = static_cast<unsigned char>(one);
    if (value >= 0x20 && value < 0x7f)
      text += one;
    else
      text += std::string("\\x") + hex_digits[value / 16] + hex_digits[value % 16];
  }
  return key.size() > shown_bytes_max ? text + "..." : text;
}

}  // namespace terrace::nixl
