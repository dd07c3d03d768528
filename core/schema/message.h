// SPDX-License-Identifier: Apache-2.0
// A struct of the schema on its own: what a reply held, kept after the reply is gone. Copies share the bytes,
// which nobody changes.
//
// Threads   As any value: not two at once on one object.
#pragma once

#include <capnp/message.h>

#include <memory>

namespace terrace::schema {

template <typename Struct>
class Message {
 public:
  using Reader = typename Struct::Reader;

  Message() = default;  // every field has its default value
  explicit Message(Reader from)
      : kept_(std::make_shared<capnp::MallocMessageBuilder>(
            static_cast<unsigned>(from.totalSize().wordCount + 1))) {
    kept_->setRoot(from);
    reader_ = kept_->template getRoot<Struct>().asReader();
  }
  // `fill` gets the builder of a copy.
  template <typename Fill>
  Message changed(Fill fill) const {
    Message copy(reader_);
    fill(copy.kept_->template getRoot<Struct>());
    copy.reader_ = copy.kept_->template getRoot<Struct>().asReader();
    return copy;
  }

  const Reader* operator->() const { return &reader_; }
  const Reader& operator*() const { return reader_; }

 private:
  std::shared_ptr<capnp::MallocMessageBuilder> kept_;
  Reader reader_;
};

}  // namespace terrace::schema
