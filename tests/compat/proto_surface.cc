// SPDX-License-Identifier: Apache-2.0
#include "tests/compat/proto_surface.h"

#include <google/protobuf/descriptor.pb.h>

#include "libs/base/check.h"

namespace talweg {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

constexpr char kReserved[] = "reserved";

std::string TypeOf(const FieldDescriptor& field) {
  if (field.is_map()) {
    const Descriptor& entry = *field.message_type();
    return "map<" + TypeOf(*entry.map_key()) + ", " + TypeOf(*entry.map_value()) + ">";
  }
  if (field.message_type() != nullptr) return field.message_type()->full_name();
  if (field.enum_type() != nullptr) return field.enum_type()->full_name();
  return field.type_name();
}

std::string TextOf(const FieldDescriptor& field) {
  std::string text = TypeOf(field) + " " + field.name();
  if (field.is_repeated() && !field.is_map()) text = "repeated " + text;
  if (const auto* oneof = field.real_containing_oneof(); oneof != nullptr) {
    return "oneof " + oneof->name() + " " + text;
  }
  return field.has_optional_keyword() ? "optional " + text : text;
}

// Numbers of an enum's range include its end; a message's do not.
void AddReserved(const std::string& name, int first, int past_end, ProtoSurface* surface) {
  TALWEG_CHECK(past_end - first <= 1000);
  for (int number = first; number < past_end; ++number) {
    (*surface)[name + " " + std::to_string(number)] = kReserved;
  }
}

void AddEnum(const EnumDescriptor& each, ProtoSurface* surface) {
  for (int i = 0; i < each.value_count(); ++i) {
    const auto& value = *each.value(i);
    std::string& text = (*surface)[each.full_name() + " " + std::to_string(value.number())];
    text += (text.empty() ? "" : ", ") + value.name();
  }
  for (int i = 0; i < each.reserved_range_count(); ++i) {
    const auto& range = *each.reserved_range(i);
    AddReserved(each.full_name(), range.start, range.end + 1, surface);
  }
}

void AddMessage(const Descriptor& message, ProtoSurface* surface) {
  if (message.options().map_entry()) return;
  for (int i = 0; i < message.field_count(); ++i) {
    const FieldDescriptor& field = *message.field(i);
    (*surface)[message.full_name() + " " + std::to_string(field.number())] = TextOf(field);
  }
  for (int i = 0; i < message.reserved_range_count(); ++i) {
    const auto& range = *message.reserved_range(i);
    AddReserved(message.full_name(), range.start, range.end, surface);
  }
  for (int i = 0; i < message.enum_type_count(); ++i) AddEnum(*message.enum_type(i), surface);
  for (int i = 0; i < message.nested_type_count(); ++i) {
    AddMessage(*message.nested_type(i), surface);
  }
}

}  // namespace

void AddFile(const google::protobuf::FileDescriptor& file, ProtoSurface* surface) {
  for (int i = 0; i < file.message_type_count(); ++i) AddMessage(*file.message_type(i), surface);
  for (int i = 0; i < file.enum_type_count(); ++i) AddEnum(*file.enum_type(i), surface);
  for (int i = 0; i < file.service_count(); ++i) {
    const auto& service = *file.service(i);
    for (int k = 0; k < service.method_count(); ++k) {
      const auto& method = *service.method(k);
      (*surface)[service.full_name() + "/" + method.name()] =
          std::string(method.client_streaming() ? "stream " : "") +
          method.input_type()->full_name() + " -> " + (method.server_streaming() ? "stream " : "") +
          method.output_type()->full_name();
    }
  }
}

std::vector<std::string> Breaks(const ProtoSurface& before, const ProtoSurface& now) {
  std::vector<std::string> breaks;
  for (const auto& [key, text] : before) {
    const auto found = now.find(key);
    if (found == now.end()) {
      breaks.push_back(key + " was '" + text +
                       "' and is gone; keep it, or write that its number is reserved");
    } else if (found->second != text && found->second != kReserved) {
      breaks.push_back(key + " was '" + text + "' and is '" + found->second +
                       "'; give what is new another number or name");
    }
  }
  return breaks;
}

}  // namespace talweg
