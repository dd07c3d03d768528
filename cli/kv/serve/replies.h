// SPDX-License-Identifier: Apache-2.0
// What a connection is still to be sent: text, and blocks that are sent from where they lie in the space.
//
// Place     Commands append to it, connection.cc sends it.
// Ownership Has the views of its blocks, until their last byte is sent: the space must outlive it.
// Threads   The server's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>

#include "core/base/error.h"
#include "terrace/kv_space.h"

namespace terrace::kv_serve {

class Replies {
 public:
  // In version 3 of the protocol from now on, else in 2. The second of two forms below is that of 3.
  void set_resp3(bool resp3) { resp3_ = resp3; }

  void simple(std::string_view word);  // +OK
  void error(std::string_view text);   // -ERR ...; its control characters become blanks
  void failure(const Error& error);    // the same, with the word that clients know for it
  void integer(int64_t number);        // :1
  void nil();                          // $-1, _
  void bulk(std::string_view bytes);   // $5 hello
  void bulk(std::span<const std::byte> bytes);
  void bulk(KvView view);        // sent without a copy
  void array(uint64_t members);  // *3; they follow
  void map(uint64_t pairs);      // *6, %3; their keys and values follow in turn
  // Text for people: $5 hello, =9 txt:hello.
  void text_for_people(std::string_view text);
  void append_all(Replies other);  // what another one was given

  uint64_t bytes() const { return bytes_; }  // that are not sent yet
  uint64_t views() const { return views_; }  // of them
  bool empty() const { return bytes_ == 0; }

  enum class Sent : uint8_t {
    all,
    blocked,   // the other side does not read now
    closed,    // nor ever will
    vanished,  // a block's memory is gone
  };
  // As much as goes without waiting; `progress` says whether anything went.
  Sent send(int fd, bool& progress);

  const std::string& text() const { return pieces_.front().text; }  // for tests: of replies without views

 private:
  struct Piece {
    std::string text;
    KvView view;
    bool is_view = false;
    size_t sent = 0;
    std::string_view rest() const;
  };

  void append(std::string_view text);
  void drop(size_t bytes);

  std::deque<Piece> pieces_;
  uint64_t bytes_ = 0;
  uint64_t views_ = 0;
  bool resp3_ = false;
};

}  // namespace terrace::kv_serve
