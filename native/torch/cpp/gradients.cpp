// Gradients on their way from autograd into the reducer's memory.

#include "border.h"

#include <ATen/ops/_foreach_copy.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

using namespace flambeau;

namespace {

// Tells Rust that the gradient of a parameter lies in its view. Whether a reduction failed; Rust remembers why.
using MarkReady = bool (*)(void* context, size_t index);

[[noreturn]] void refuse_sparse(size_t index) {
  throw std::runtime_error("sparse gradient of parameter " + std::to_string(index));
}

// Parameters and, for each, a tensor over the reducer's memory with the parameter's strides.
struct Gradients {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> views;
};

class ViewHook : public torch::autograd::PostAccumulateGradHook {
 public:
  ViewHook(at::Tensor view, size_t index, MarkReady mark_ready, void* context)
      : view_(std::move(view)), index_(index), mark_ready_(mark_ready), context_(context) {}

  void operator()(const at::Tensor& parameter) override {
    auto& gradient = parameter.mutable_grad();
    if (!gradient.is_same(view_)) {
      if (!gradient.defined() || gradient.is_sparse()) refuse_sparse(index_);
      at::NoGradGuard no_grad;
      view_.copy_(gradient);
      gradient = view_;
    }
    if (mark_ready_(context_, index_)) throw std::runtime_error("a reduction of gradients failed");
  }

 private:
  at::Tensor view_;
  size_t index_;
  MarkReady mark_ready_;
  void* context_;
};

}  // namespace

extern "C" {

Gradients* flambeau_gradients_new(const ConstTensorPtr* parameters, const ConstTensorPtr* views, size_t count) noexcept {
  return new Gradients{tensors_of(parameters, count), tensors_of(views, count)};
}

// Has every parameter's gradient copied into its view, and `mark_ready` called, as soon as backward has made it.
char* flambeau_gradients_hook(Gradients* gradients, MarkReady mark_ready, void* context) {
  return guarded([&] {
    for (size_t i = 0; i < gradients->parameters.size(); ++i) {
      torch::autograd::impl::set_post_acc_grad_hooks(
          gradients->parameters[i], std::make_unique<ViewHook>(gradients->views[i], i, mark_ready, context));
    }
  });
}

// Copies all gradients into their views at once, after a backward without hooks. `ready[i]` says which there were.
char* flambeau_gradients_gather(Gradients* gradients, bool* ready) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    std::vector<at::Tensor> sources, targets;
    for (size_t i = 0; i < gradients->parameters.size(); ++i) {
      auto& gradient = gradients->parameters[i].mutable_grad();
      ready[i] = gradient.defined();
      if (!ready[i] || gradient.is_same(gradients->views[i])) continue;
      if (gradient.is_sparse()) refuse_sparse(i);
      sources.push_back(gradient);
      targets.push_back(gradients->views[i]);
      gradient = gradients->views[i];
    }
    if (!targets.empty()) at::_foreach_copy_(targets, sources);
  });
}

// Drops all gradients; the reducer's memory stays.
void flambeau_gradients_clear(Gradients* gradients) noexcept {
  for (auto& parameter : gradients->parameters) parameter.mutable_grad().reset();
}

// Takes gradients and hooks off the parameters.
void flambeau_gradients_free(Gradients* gradients) noexcept {
  flambeau_gradients_clear(gradients);
  for (auto& parameter : gradients->parameters) {
    torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
  delete gradients;
}
}
