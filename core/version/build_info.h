// SPDX-License-Identifier: Apache-2.0
// What was built: the version, the commit and the kind of build, for `--version`.
//
// Place     terraced and the command line alone link it: a new commit compiles one file again, and links those.
#pragma once

namespace terrace {

// "0.2.0 (1a2b3c4d5e6f, release)"; "changed" follows the commit of a tree with changes, and "no git tree" stands where
// an archive was built. Threads: any.
const char* version_and_build();

}  // namespace terrace
