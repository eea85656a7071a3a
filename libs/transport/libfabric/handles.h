// SPDX-License-Identifier: Apache-2.0
#ifndef TALWEG_LIBS_TRANSPORT_LIBFABRIC_HANDLES_H_
#define TALWEG_LIBS_TRANSPORT_LIBFABRIC_HANDLES_H_

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#include <memory>
#include <string>

namespace talweg::transport {

struct FidCloser {
  template <typename Fid>
  void operator()(Fid* object) const {
    // fi_close fails if another object depends on this one. Members are declared so that dependents
    // are closed first.
    fi_close(&object->fid);
  }
};

using FabricHandle = std::unique_ptr<fid_fabric, FidCloser>;
using DomainHandle = std::unique_ptr<fid_domain, FidCloser>;
using EventQueueHandle = std::unique_ptr<fid_eq, FidCloser>;
using CompletionQueueHandle = std::unique_ptr<fid_cq, FidCloser>;
using EndpointHandle = std::unique_ptr<fid_ep, FidCloser>;
using PassiveEndpointHandle = std::unique_ptr<fid_pep, FidCloser>;
using MemoryRegionHandle = std::unique_ptr<fid_mr, FidCloser>;

struct InfoFreer {
  void operator()(fi_info* info) const { fi_freeinfo(info); }
};
using InfoHandle = std::unique_ptr<fi_info, InfoFreer>;

// The text of a libfabric result, negative or positive.
inline std::string FabricErrorText(int64_t error) {
  return fi_strerror(static_cast<int>(error < 0 ? -error : error));
}

}  // namespace talweg::transport

#endif  // TALWEG_LIBS_TRANSPORT_LIBFABRIC_HANDLES_H_
