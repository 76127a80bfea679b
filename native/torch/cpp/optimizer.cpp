// The arithmetic of torch.optim: the fused kernels where torch has them, else the operators that it calls itself.

#include "border.h"

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>

using namespace flambeau;

extern "C" {

// One step of torch.optim.SGD(fused=True). `momenta` is null without momentum; in the first step it takes values.
char* flambeau_sgd(
    const ConstTensorPtr* parameters,
    const ConstTensorPtr* gradients,
    const ConstTensorPtr* momenta,
    size_t count,
    double lr,
    double momentum,
    double dampening,
    double weight_decay,
    bool nesterov,
    bool maximize,
    bool is_first_step) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    auto buffers = momenta == nullptr ? std::vector<at::Tensor>{} : tensors_of(momenta, count);
    at::_fused_sgd_(
        tensors_of(parameters, count),
        tensors_of(gradients, count),
        buffers,
        weight_decay,
        momentum,
        lr,
        dampening,
        nesterov,
        maximize,
        is_first_step);
  });
}

// One step of torch.optim.Adam(fused=True), or of AdamW. `max_squares` is null without amsgrad.
char* flambeau_adam(
    const ConstTensorPtr* parameters,
    const ConstTensorPtr* gradients,
    const ConstTensorPtr* averages,
    const ConstTensorPtr* squares,
    const ConstTensorPtr* max_squares,
    const ConstTensorPtr* steps,
    size_t count,
    double lr,
    double beta1,
    double beta2,
    double eps,
    double weight_decay,
    bool maximize,
    bool decoupled) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    auto counters = tensors_of(steps, count);
    at::_foreach_add_(counters, 1);
    auto maxima = max_squares == nullptr ? std::vector<at::Tensor>{} : tensors_of(max_squares, count);
    auto* kernel = decoupled
        ? static_cast<decltype(&at::_ops::_fused_adamw_::call)>(&at::_ops::_fused_adamw_::call)
        : &at::_ops::_fused_adam_::call;
    kernel(
        tensors_of(parameters, count),
        tensors_of(gradients, count),
        tensors_of(averages, count),
        tensors_of(squares, count),
        maxima,
        counters,
        lr,
        beta1,
        beta2,
        weight_decay,
        eps,
        max_squares != nullptr,
        maximize,
        std::nullopt,
        std::nullopt);
  });
}

// One step of torch.optim.RMSprop on one parameter. `average` is null unless centered, `momenta` without momentum.
char* flambeau_rmsprop(
    ConstTensorPtr parameter_,
    ConstTensorPtr gradient_,
    ConstTensorPtr square,
    ConstTensorPtr average,
    ConstTensorPtr momenta,
    double lr,
    double alpha,
    double eps,
    double weight_decay,
    double momentum,
    bool maximize) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    at::Tensor parameter = *parameter_, gradient = *gradient_;
    if (maximize) gradient = gradient.neg();
    if (weight_decay != 0) gradient = gradient.add(parameter, weight_decay);
    square->mul_(alpha).addcmul_(gradient, gradient, 1 - alpha);
    at::Tensor deviation;
    if (average != nullptr) {
      average->lerp_(gradient, 1 - alpha);
      deviation = square->addcmul(*average, *average, -1).sqrt_();
    } else {
      deviation = square->sqrt();
    }
    deviation.add_(eps);
    if (momenta != nullptr) {
      momenta->mul_(momentum).addcdiv_(gradient, deviation);
      parameter.add_(*momenta, -lr);
    } else {
      parameter.addcdiv_(gradient, deviation, -lr);
    }
  });
}
}
