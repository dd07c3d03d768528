// SPDX-License-Identifier: Apache-2.0
// A client's certificate with its key in one file, as browsers import them (PKCS #12), under a password.
//
// Threads   Any.
#pragma once

#include <string>

#include "cli/tools/cert_files.h"

namespace terrace::cli {

// `name` is what the browser's list shows. The CA's certificate is in the file, too.
Result<std::string> make_pkcs12(const std::string& name, const std::string& certificate_pem,
                                const std::string& key_pem, X509& ca, const std::string& password);

// Twenty letters and digits drawn at random, a hundred bits.
Result<std::string> new_password();
// The first line of a file that nobody else can read.
// Errors    invalid_argument   it is empty or too long; permission_denied: others can read it; as read_pem_file
Result<std::string> read_password(const std::string& file);

}  // namespace terrace::cli
