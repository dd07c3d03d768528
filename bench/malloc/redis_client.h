// SPDX-License-Identifier: Apache-2.0
// One connection to a redis-server, as little as bench_malloc needs: commands in a row, their answers in a row.
#pragma once

#include <string>
#include <vector>

#include "core/base/unique_fd.h"

namespace terrace::bench {

class RedisClient {
 public:
  // False: nobody listens there (yet).
  bool connect(const std::string& socket);

  // Puts a command into the next send.
  void add(const std::vector<std::string>& words);
  // Sends all that was added and reads as many answers. A bulk answer is its text, a missing one is "(nil)", an
  // error begins with '-'. Empty: the connection is gone.
  std::vector<std::string> exchange();
  std::string ask(const std::vector<std::string>& words);  // one; empty: the connection is gone
  // The text behind `field:` in the answer to INFO.
  std::string info(const std::string& field);

 private:
  bool more();
  bool read_answer(std::string* answer);

  UniqueFd socket_;
  std::string out_, in_;
  size_t at_ = 0;
  size_t pending_ = 0;
};

}  // namespace terrace::bench
