// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_BASE_SHOWN_ADDRESS_H_
#define TALWEG_LIBS_BASE_SHOWN_ADDRESS_H_

#include <string>

namespace talweg {

// What people may see of a data address: where and how a process is reached, and not what lets one
// in. "fi:tcp://10.0.0.3:7001,local" of "fi:tcp://10.0.0.3:7001/<token>,local:<name>".
std::string ShownAddress(const std::string& data_address);

}  // namespace talweg

#endif  // TALWEG_LIBS_BASE_SHOWN_ADDRESS_H_
