// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_SHOWN_ADDRESS_H_
#define TALWEG_LIBS_BASE_SHOWN_ADDRESS_H_

#include <string>

namespace talweg {

// The part of a data address that people may see: where and how a process is reached, but not what
// lets one in. "fi:tcp://10.0.0.3:7001,local" for "fi:tcp://10.0.0.3:7001/<token>,local:<name>".
std::string ShownAddress(const std::string& data_address);

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_SHOWN_ADDRESS_H_
