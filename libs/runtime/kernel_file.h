// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_RUNTIME_KERNEL_FILE_H_
#define TALWEG_LIBS_RUNTIME_KERNEL_FILE_H_

#include <string>

namespace talweg::runtime {

// The text of a file that the kernel makes when it is read (/proc, /sys), up to the first error.
// The text is empty for a process that has ended. Never throws if a read fails, because a process
// may end between open and read. An iterator over the stream's buffer would throw.
std::string ReadKernelFile(const std::string& path);

}  // namespace talweg::runtime

#endif  // TALWEG_LIBS_RUNTIME_KERNEL_FILE_H_
