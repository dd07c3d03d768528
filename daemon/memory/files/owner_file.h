// SPDX-License-Identifier: Apache-2.0
// The file that says whose a directory of memory is: the id of the store that its leases are in, and where that
// store lies, for messages. Replaced as a whole, and synced before anything relies on it.
//
// Place     ObjectDirectory has one for its objects, DevdaxBackend one for its records. docs/formats/store_id.md
// Threads   Any; one writer at a time.
#pragma once

#include <optional>
#include <string>

#include "core/base/result.h"
#include "daemon/memory/backend.h"

namespace terrace::daemon {

struct OwnedDirectory {
  int fd = -1;
  std::string path;  // for messages
};

struct Owner {
  StoreId store;
  std::string words;  // StoreClaim::owner
};

// nullopt: nobody's yet.
// Errors    corrupt   the file is none of those that claim_directory() writes
Result<std::optional<Owner>> read_owner(const OwnedDirectory& directory);

// Makes the directory the claim's, unless it is another store's: or, where no file says whose it is, unless there
// are `objects` in it and the store is new.
// Errors    invalid_argument   another store's; says which one's, and what to do
Status claim_directory(const OwnedDirectory& directory, const StoreClaim& claim, size_t objects);

// Beside the owner file the manager keeps the number of the newest commit that this memory has seen
// (Store::mark_also); it goes with the owner file.
inline constexpr const char* memory_mark_name = "store-mark";

bool is_owner_file(std::string_view name);
void forget_owner(int directory);

}  // namespace terrace::daemon
