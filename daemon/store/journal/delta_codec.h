// SPDX-License-Identifier: Apache-2.0
// A Delta as the bytes of one journal record, and back. The bytes are canonical: one Delta has one encoding,
// and decoded bytes encode to the same bytes again. docs/formats/journal.md describes them.
//
// Place     daemon/store/journal; pure.
// Threads   A ByteBuffer belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "core/base/result.h"
#include "daemon/model/rows.h"

namespace terrace::daemon {

// Growing memory that begins at a 4096-byte boundary, as direct I/O wants it.
class ByteBuffer {
 public:
  static constexpr size_t alignment = 4096;

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }
  void clear() { size_ = 0; }
  void resize(size_t size);  // new bytes are zero
  void put_byte(uint8_t value);
  void put_integer(uint64_t value);  // LEB128: 7 bits a byte, the lowest first
  void put_fixed(uint64_t value);    // 8 bytes, little-endian
  void put_text(std::string_view text);
  // Gives memory beyond `bytes` back.
  void shrink(size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  void grow(size_t capacity);
  void need(size_t more) {
    if (capacity_ - size_ < more) grow(size_ + more);
  }

  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
  size_t capacity_ = 0;
};

// Appends `delta` to `out`. Its rows are valid (row_codec.h); lines of the audit log are cut to their bound.
void encode_delta(const Delta& delta, ByteBuffer& out);

// Adds what `bytes` encode to `delta`, as Delta::merge would. The bytes are untrusted; every row is validated.
// Errors    corrupt   they are no encoding of a Delta; `delta` is then of no use
Status decode_delta(std::span<const std::byte> bytes, Delta& delta);

}  // namespace terrace::daemon
