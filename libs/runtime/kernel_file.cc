// SPDX-License-Identifier: Apache-2.0
#include "libs/runtime/kernel_file.h"

#include <fstream>

namespace talweg::runtime {

std::string ReadKernelFile(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  std::getline(file, text, '\0');
  return text;
}

}  // namespace talweg::runtime
