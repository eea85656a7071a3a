// SPDX-License-Identifier: Apache-2.0
// Does what grpcurl does, for tests. It lists the services of the gRPC server at an address,
// describes every method and calls it with an empty request. It knows only what the server tells of
// itself. With TLS, a reader's certificate or token lists the services, and the caller's calls
// them. Given the name of a job, requests ask for that job, and for all details.
//
//   service talweg.scheduler.v1.AdminService
//   called talweg.scheduler.v1.AdminService/ListJobs: OK {"jobs":[]}
//   called talweg.scheduler.v1.PoolService/RenewAggregator: NOT_FOUND this scheduler knows no ...
#include <google/protobuf/descriptor.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/util/json_util.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <google/protobuf/descriptor.pb.h>

#include "absl/status/status.h"
#include "libs/rpc/credentials.h"
#include "libs/rpc/credentials_access.h"

namespace talweg {
namespace {

using google::protobuf::Message;

constexpr auto kPatience = std::chrono::seconds(60);
// A watch may have nothing to send.
constexpr auto kStreamPatience = std::chrono::seconds(20);

// Makes one call in the simple way: it waits for each step.
class Call {
 public:
  Call(grpc::GenericStub& stub, const std::string& method, std::chrono::seconds patience) {
    context_.set_deadline(std::chrono::system_clock::now() + patience);
    call_ = stub.PrepareCall(&context_, method, &queue_);
    call_->StartCall(nullptr);
    Done();
  }
  ~Call() {
    context_.TryCancel();
    queue_.Shutdown();
    while (Done()) {
    }
  }

  void Write(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    call_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    Done();
  }
  bool Read(std::string* bytes) {
    grpc::ByteBuffer buffer;
    call_->Read(&buffer, nullptr);
    std::vector<grpc::Slice> slices;
    if (!Done() || !buffer.Dump(&slices).ok()) return false;
    bytes->clear();
    for (const grpc::Slice& part : slices) {
      bytes->append(reinterpret_cast<const char*>(part.begin()), part.size());
    }
    return true;
  }
  void WritesDone() {
    call_->WritesDone(nullptr);
    Done();
  }
  grpc::Status Finish() {
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Done();
    return status;
  }

 private:
  bool Done() {
    void* tag = nullptr;
    bool ok = false;
    return queue_.Next(&tag, &ok) && ok;
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

// Only the messages of reflection itself are compiled in.
class Reflection {
 public:
  explicit Reflection(grpc::GenericStub& stub)
      : call_(stub, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", kPatience) {}

  std::vector<std::string> Services() {
    std::vector<std::string> names;
    const auto response = Ask("list_services");
    if (response == nullptr) return names;
    const Message& list = Field(*response, "list_services_response");
    const auto* services = list.GetDescriptor()->FindFieldByName("service");
    for (int i = 0; i < list.GetReflection()->FieldSize(list, services); ++i) {
      const Message& each = list.GetReflection()->GetRepeatedMessage(list, services, i);
      names.push_back(
          each.GetReflection()->GetString(each, each.GetDescriptor()->FindFieldByName("name")));
    }
    return names;
  }

  // Reads the file that describes `symbol`, with all that it imports.
  const google::protobuf::ServiceDescriptor* Describe(const std::string& symbol) {
    const auto response = Ask("file_containing_symbol", symbol);
    if (response == nullptr) return nullptr;
    const Message& files = Field(*response, "file_descriptor_response");
    const auto* bytes = files.GetDescriptor()->FindFieldByName("file_descriptor_proto");
    for (int i = 0; i < files.GetReflection()->FieldSize(files, bytes); ++i) {
      google::protobuf::FileDescriptorProto file;
      file.ParseFromString(files.GetReflection()->GetRepeatedString(files, bytes, i));
      known_[file.name()] = file;
    }
    for (const auto& [name, file] : known_) Learn(name);
    return pool_.FindServiceByName(symbol);
  }

 private:
  std::unique_ptr<Message> Ask(const std::string& field, const std::string& value = "") {
    std::unique_ptr<Message> request = New("grpc.reflection.v1alpha.ServerReflectionRequest");
    std::unique_ptr<Message> response = New("grpc.reflection.v1alpha.ServerReflectionResponse");
    if (request == nullptr || response == nullptr) return nullptr;
    request->GetReflection()->SetString(request.get(),
                                        request->GetDescriptor()->FindFieldByName(field), value);
    call_.Write(request->SerializeAsString());
    std::string bytes;
    if (!call_.Read(&bytes) || !response->ParseFromString(bytes)) return nullptr;
    return response;
  }

  static std::unique_ptr<Message> New(const std::string& name) {
    const auto* type =
        google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(name);
    if (type == nullptr) return nullptr;
    auto* factory = google::protobuf::MessageFactory::generated_factory();
    return std::unique_ptr<Message>(factory->GetPrototype(type)->New());
  }
  static const Message& Field(const Message& message, const std::string& name) {
    return message.GetReflection()->GetMessage(message,
                                               message.GetDescriptor()->FindFieldByName(name));
  }
  void Learn(const std::string& name) {
    const auto file = known_.find(name);
    if (file == known_.end() || pool_.FindFileByName(name) != nullptr) return;
    for (const std::string& import : file->second.dependency()) Learn(import);
    pool_.BuildFile(file->second);
  }

  Call call_;
  std::map<std::string, google::protobuf::FileDescriptorProto> known_;
  google::protobuf::DescriptorPool pool_;
};

// Asks for the job with that name, and for all that there is to say.
void AskForAll(const std::string& job, Message& request) {
  for (int i = 0; i < request.GetDescriptor()->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* field = request.GetDescriptor()->field(i);
    if (field->is_repeated()) continue;
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_BOOL) {
      request.GetReflection()->SetBool(&request, field, true);
    } else if (field->name() == "name" || field->name() == "job_name") {
      request.GetReflection()->SetString(&request, field, job);
    }
  }
}

void CallOne(grpc::GenericStub& stub, const google::protobuf::MethodDescriptor& method,
             const std::string& job) {
  const std::string name = method.service()->full_name() + "/" + method.name();
  const bool streams = method.server_streaming() || method.client_streaming();
  Call call(stub, "/" + name, streams ? kStreamPatience : kPatience);
  google::protobuf::DynamicMessageFactory factory;
  const std::unique_ptr<Message> request(factory.GetPrototype(method.input_type())->New());
  if (!job.empty()) AskForAll(job, *request);
  call.Write(request->SerializeAsString());
  call.WritesDone();
  std::string bytes;
  std::string said;
  if (call.Read(&bytes)) {
    const std::unique_ptr<Message> response(factory.GetPrototype(method.output_type())->New());
    said = "does not parse";
    if (response->ParseFromString(bytes)) {
      said.clear();
      const auto printed = google::protobuf::util::MessageToJsonString(*response, &said);
      if (!printed.ok()) said = "is not JSON";
    }
    if (streams) {
      std::printf("called %s: OK %s\n", name.c_str(), said.c_str());
      return;
    }
  }
  const grpc::Status status = call.Finish();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  std::printf("called %s: %s %s\n", name.c_str(), absl::StatusCodeToString(code).c_str(),
              status.ok() ? said.c_str() : status.error_message().c_str());
}

// `who` is "TLS_DIR" or "TLS_DIR,TOKEN_FILE". Returns null if there is no directory.
std::shared_ptr<const rpc::Credentials> CredentialsOf(const std::string& who) {
  const size_t comma = std::min(who.find(','), who.size());
  const auto loaded =
      rpc::Credentials::Load({.tls_directory = who.substr(0, comma),
                              .token_file = who.substr(std::min(comma + 1, who.size()))});
  if (!loaded.ok()) {
    std::fprintf(stderr, "generic_tool: %s\n", loaded.status().ToString().c_str());
    std::exit(2);
  }
  return *loaded;
}

int Main(const std::string& address, const std::string& job, const std::string& caller,
         const std::string& reader) {
  const auto connect = [&](const std::string& who) {
    return grpc::CreateChannel(address,
                               rpc::CredentialsAccess::Channel(CredentialsOf(who), address, {}));
  };
  grpc::GenericStub stub(connect(caller));
  grpc::GenericStub reading(connect(reader));
  Reflection reflection(reading);
  const std::vector<std::string> services = reflection.Services();
  for (const std::string& service : services) {
    std::printf("service %s\n", service.c_str());
    if (service.find("reflection") != std::string::npos) continue;
    const google::protobuf::ServiceDescriptor* described = reflection.Describe(service);
    if (described == nullptr) {
      std::printf("%s is not described\n", service.c_str());
      return 1;
    }
    for (int i = 0; i < described->method_count(); ++i) CallOne(stub, *described->method(i), job);
  }
  return services.empty() ? 1 : 0;
}

}  // namespace
}  // namespace talweg

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr,
                 "usage: generic_tool ADDRESS [JOB | CALLER READER]\n"
                 "       CALLER, READER: TLS_DIR[,TOKEN_FILE]\n");
    return 2;
  }
  return talweg::Main(argv[1], argc == 3 ? argv[2] : "", argc == 4 ? argv[2] : "",
                      argc == 4 ? argv[3] : "");
}
