#include "dispatch.h"

#include "border.h"

#include <ATen/ATen.h>
#include <ATen/ScalarOps.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace flambeau;

namespace flambeau {

// A value of an argument: a constant, what is in a slot, or a list with at least one slot in it.
struct Operand {
  enum class Form { Unset, Constant, Slot, List };
  Form form = Form::Unset;
  c10::IValue constant;
  size_t slot = 0;
  // What the schema wants, without Optional; for a list the type of its elements.
  c10::TypePtr type;
  bool optional = false;
  std::vector<Operand> items;
};

struct Return {
  bool is_list = false;
  std::vector<int64_t> slots;
};

}  // namespace flambeau

namespace {

[[noreturn]] void refuse(const c10::Type& type, const char* given) {
  TORCH_CHECK(false, "expects ", type.str(), ", got ", given);
}

// A value as the schema's type has it: numbers for tensors are wrapped as torch's Python parser does it, so that they
// take no part in the promotion of types, and integers become floats where a float is wanted.
c10::IValue coerced(const c10::Type& type, bool optional, c10::IValue value) {
  if (value.isNone()) {
    if (!optional) {
      refuse(type, "None");
    }
    return value;
  }
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      if (value.isTensor()) {
        return value;
      }
      if (value.isScalar()) {
        return at::native::wrapped_scalar_tensor(value.toScalar());
      }
      break;
    case c10::TypeKind::FloatType:
      if (value.isDouble()) {
        return value;
      }
      if (value.isInt()) {
        return static_cast<double>(value.toInt());
      }
      break;
    case c10::TypeKind::IntType:
      if (value.isInt()) {
        return value;
      }
      if (value.isBool()) {
        return static_cast<int64_t>(value.toBool());
      }
      break;
    case c10::TypeKind::BoolType:
      if (value.isBool()) {
        return value;
      }
      if (value.isInt()) {
        return value.toInt() != 0;
      }
      break;
    case c10::TypeKind::NumberType:
      if (value.isScalar()) {
        return value;
      }
      break;
    default:
      if (value.type()->isSubtypeOf(type)) {
        return value;
      }
  }
  refuse(type, value.tagKind().c_str());
}

c10::IValue constant_of(const flambeau_value& value) {
  switch (value.kind) {
    case FLAMBEAU_NONE:
      return c10::IValue();
    case FLAMBEAU_BOOL:
      return value.integer != 0;
    case FLAMBEAU_INT:
      return value.integer;
    case FLAMBEAU_FLOAT:
      return value.real;
    case FLAMBEAU_COMPLEX:
      return c10::complex<double>(value.real, value.imaginary);
    case FLAMBEAU_STRING:
      return std::string(value.text, value.length);
    case FLAMBEAU_SCALAR_TYPE:
      return static_cast<c10::ScalarType>(value.integer);
    case FLAMBEAU_LAYOUT:
      return static_cast<c10::Layout>(value.integer);
    case FLAMBEAU_MEMORY_FORMAT:
      return static_cast<c10::MemoryFormat>(value.integer);
    case FLAMBEAU_DEVICE:
      return c10::Device(std::string(value.text, value.length));
    default:
      TORCH_CHECK(false, "a value of unknown kind ", value.kind);
  }
}

c10::IValue list_of(const c10::TypePtr& element, std::vector<c10::IValue> items) {
  c10::impl::GenericList list(element);
  list.reserve(items.size());
  for (auto& item : items) {
    list.push_back(std::move(item));
  }
  return c10::IValue(std::move(list));
}

// `count` is the length that a single value is repeated to where a list is wanted, as in `int[2]`.
Operand operand_of(c10::TypePtr type, std::optional<int32_t> count, const flambeau_value& value) {
  Operand operand;
  if (auto optional = type->cast<c10::OptionalType>()) {
    type = optional->getElementType();
    operand.optional = true;
  }
  operand.type = type;
  const auto list = type->cast<c10::ListType>();
  if (list && value.kind != FLAMBEAU_NONE) {
    operand.type = list->getElementType();
    const flambeau_value* items = value.items;
    size_t num_items = value.num_items;
    std::vector<flambeau_value> repeated;
    if (value.kind != FLAMBEAU_LIST) {
      TORCH_CHECK(count.has_value() && *count > 0 && *count <= 16, "expects ", type->str(), ", got a single value");
      repeated.assign(static_cast<size_t>(*count), value);
      items = repeated.data();
      num_items = repeated.size();
    }
    bool dynamic = false;
    for (size_t i = 0; i < num_items; i++) {
      operand.items.push_back(operand_of(operand.type, std::nullopt, items[i]));
      dynamic = dynamic || operand.items.back().form != Operand::Form::Constant;
    }
    if (dynamic) {
      operand.form = Operand::Form::List;
      return operand;
    }
    std::vector<c10::IValue> constants;
    for (auto& item : operand.items) {
      constants.push_back(item.constant);
    }
    operand.items.clear();
    operand.constant = list_of(operand.type, std::move(constants));
    operand.form = Operand::Form::Constant;
    return operand;
  }
  TORCH_CHECK(value.kind != FLAMBEAU_LIST, "expects ", type->str(), ", got a list");
  if (value.kind == FLAMBEAU_SLOT) {
    operand.form = Operand::Form::Slot;
    operand.slot = static_cast<size_t>(value.integer);
    return operand;
  }
  operand.form = Operand::Form::Constant;
  operand.constant = coerced(*type, operand.optional, constant_of(value));
  return operand;
}

}  // namespace

struct flambeau_frame {
  std::vector<c10::IValue> slots;
  torch::jit::Stack stack;
};

struct flambeau_call {
  c10::OperatorHandle op;
  std::vector<Operand> arguments;
  std::vector<Return> returns;
  std::vector<size_t> releases;
};

namespace {

void move(Operand& operand, const c10::Device& from, const c10::Device& to) {
  if (operand.constant.isDevice() && operand.constant.toDevice() == from) operand.constant = to;
  for (auto& item : operand.items) move(item, from, to);
}

c10::IValue value_of(const Operand& operand, const flambeau_frame& frame) {
  switch (operand.form) {
    case Operand::Form::Constant:
      return operand.constant;
    case Operand::Form::Slot:
      return coerced(*operand.type, operand.optional, frame.slots.at(operand.slot));
    default: {
      std::vector<c10::IValue> items;
      items.reserve(operand.items.size());
      for (const auto& item : operand.items) {
        items.push_back(value_of(item, frame));
      }
      return list_of(operand.type, std::move(items));
    }
  }
}

}  // namespace

char* flambeau_call_new(const char* name, const char* overload, flambeau_call** call) {
  return guarded([&] {
    auto op = c10::Dispatcher::singleton().findSchema({name, overload});
    TORCH_CHECK(op.has_value(), "libtorch has no such operator");
    auto made = std::make_unique<flambeau_call>(flambeau_call{*op, {}, {}, {}});
    for (const auto& argument : op->schema().arguments()) {
      Operand operand;
      if (argument.default_value().has_value()) {
        operand.form = Operand::Form::Constant;
        operand.constant = *argument.default_value();
      }
      made->arguments.push_back(std::move(operand));
    }
    made->returns.resize(op->schema().returns().size());
    *call = made.release();
  });
}

void flambeau_call_free(flambeau_call* call) noexcept { delete call; }

size_t flambeau_call_num_arguments(const flambeau_call* call) noexcept { return call->arguments.size(); }

const char* flambeau_call_argument_name(const flambeau_call* call, size_t index) noexcept {
  return call->op.schema().arguments()[index].name().c_str();
}

size_t flambeau_call_num_returns(const flambeau_call* call) noexcept { return call->returns.size(); }

bool flambeau_call_aliases(const flambeau_call* call, size_t index, bool* writes) noexcept {
  const auto* alias = call->op.schema().arguments()[index].alias_info();
  *writes = alias != nullptr && alias->isWrite();
  return alias != nullptr;
}

char* flambeau_call_set(flambeau_call* call, size_t index, const flambeau_value* value) {
  return guarded([&] {
    const auto& argument = call->op.schema().arguments().at(index);
    call->arguments.at(index) = operand_of(argument.type(), argument.N(), *value);
  });
}

void flambeau_call_return(
    flambeau_call* call, size_t index, const int64_t* slots, size_t num_slots, bool is_list) noexcept {
  call->returns[index] = Return{is_list, {slots, slots + num_slots}};
}

void flambeau_call_release(flambeau_call* call, const size_t* slots, size_t num_slots) noexcept {
  call->releases.assign(slots, slots + num_slots);
}

char* flambeau_call_check(const flambeau_call* call) {
  return guarded([&] {
    for (size_t i = 0; i < call->arguments.size(); i++) {
      TORCH_CHECK(
          call->arguments[i].form != Operand::Form::Unset, "argument ", call->op.schema().arguments()[i].name(),
          " is missing");
    }
  });
}

char* flambeau_call_move(flambeau_call* call, const char* from, const char* to) {
  return guarded([&] {
    const c10::Device source(from), target(to);
    for (auto& argument : call->arguments) move(argument, source, target);
  });
}

char* flambeau_call_run(const flambeau_call* call, flambeau_frame* frame) {
  return guarded([&] {
    auto& stack = frame->stack;
    stack.clear();
    for (const auto& argument : call->arguments) {
      stack.push_back(value_of(argument, *frame));
    }
    for (size_t slot : call->releases) {
      frame->slots.at(slot) = c10::IValue();
    }
    call->op.callBoxed(stack);
    TORCH_CHECK(stack.size() == call->returns.size(), "returned ", stack.size(), " values");
    for (size_t i = 0; i < stack.size(); i++) {
      const auto& target = call->returns[i];
      if (!target.is_list) {
        if (!target.slots.empty() && target.slots[0] >= 0) {
          frame->slots.at(static_cast<size_t>(target.slots[0])) = std::move(stack[i]);
        }
        continue;
      }
      const auto list = stack[i].toListRef();
      TORCH_CHECK(
          list.size() == target.slots.size(), "returned a list of ", list.size(), ", the graph was made for ",
          target.slots.size());
      for (size_t j = 0; j < list.size(); j++) {
        if (target.slots[j] >= 0) {
          frame->slots.at(static_cast<size_t>(target.slots[j])) = list[j];
        }
      }
    }
    stack.clear();
  });
}

flambeau_frame* flambeau_frame_new(size_t num_slots) noexcept {
  return new flambeau_frame{std::vector<c10::IValue>(num_slots), {}};
}

void flambeau_frame_free(flambeau_frame* frame) noexcept { delete frame; }

void flambeau_frame_set_tensor(flambeau_frame* frame, size_t slot, const at::Tensor* tensor) noexcept {
  frame->slots[slot] = *tensor;
}

void flambeau_frame_set_number(flambeau_frame* frame, size_t slot, const flambeau_number* number) noexcept {
  auto& target = frame->slots[slot];
  switch (number->kind) {
    case FLAMBEAU_BOOL:
      target = number->integer != 0;
      break;
    case FLAMBEAU_FLOAT:
      target = number->real;
      break;
    default:
      target = number->integer;
  }
}

char* flambeau_frame_tensor(const flambeau_frame* frame, size_t slot, at::Tensor** tensor) {
  return guarded([&] {
    const auto& value = frame->slots.at(slot);
    TORCH_CHECK(value.isTensor() && value.toTensor().defined(), "is no tensor but ", value.tagKind());
    *tensor = new at::Tensor(value.toTensor());
  });
}

char* flambeau_frame_number(const flambeau_frame* frame, size_t slot, flambeau_number* number) {
  return guarded([&] {
    const auto& value = frame->slots.at(slot);
    if (value.isBool()) {
      *number = {FLAMBEAU_BOOL, value.toBool() ? 1 : 0, 0.0};
    } else if (value.isInt()) {
      *number = {FLAMBEAU_INT, value.toInt(), 0.0};
    } else {
      TORCH_CHECK(value.isDouble(), "is no number but ", value.tagKind());
      *number = {FLAMBEAU_FLOAT, 0, value.toDouble()};
    }
  });
}

char* flambeau_autocast_enter(
    const char* device_type, bool enabled, int32_t scalar_type, bool cache_enabled, flambeau_autocast* previous) {
  return guarded([&] {
    const auto type = c10::Device(device_type).type();
    *previous = {
        static_cast<int32_t>(type), at::autocast::is_autocast_enabled(type),
        static_cast<int32_t>(at::autocast::get_autocast_dtype(type)), at::autocast::is_autocast_cache_enabled()};
    at::autocast::set_autocast_enabled(type, enabled);
    if (scalar_type >= 0) {
      at::autocast::set_autocast_dtype(type, static_cast<c10::ScalarType>(scalar_type));
    }
    at::autocast::set_autocast_cache_enabled(cache_enabled);
    at::autocast::increment_nesting();
  });
}

void flambeau_autocast_leave(const flambeau_autocast* previous) noexcept {
  const auto type = static_cast<c10::DeviceType>(previous->device_type);
  if (at::autocast::decrement_nesting() == 0) {
    at::autocast::clear_cache();
  }
  at::autocast::set_autocast_enabled(type, previous->enabled);
  at::autocast::set_autocast_dtype(type, static_cast<c10::ScalarType>(previous->scalar_type));
  at::autocast::set_autocast_cache_enabled(previous->cache_enabled);
}
