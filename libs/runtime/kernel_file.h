// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_KERNEL_FILE_H_
#define TALWEG_LIBS_RUNTIME_KERNEL_FILE_H_

#include <string>

namespace talweg {

// The text of a file that the kernel makes when it is read (/proc, /sys); what there is up to the
// first error, so empty for one of a process that has ended. Never throws for a read that fails, as
// an iterator over the stream's buffer would: a process may end between open and read.
std::string ReadKernelFile(const std::string& path);

}  // namespace talweg

#endif  // TALWEG_LIBS_RUNTIME_KERNEL_FILE_H_
