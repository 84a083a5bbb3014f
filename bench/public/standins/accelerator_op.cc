// A step of an accelerator: an operation that is done after some seconds and takes no processor.
#include <chrono>
#include <thread>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

REGISTER_OP("AcceleratorStep")
    .Attr("T: list(type) >= 1")
    .Attr("seconds: float")
    .Input("batch: T")
    .Output("loss: float")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Scalar());
      return absl::OkStatus();
    });

class AcceleratorStep : public tensorflow::AsyncOpKernel {
 public:
  explicit AcceleratorStep(tensorflow::OpKernelConstruction* context)
      : tensorflow::AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("seconds", &seconds_));
  }

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    tensorflow::Tensor* loss = nullptr;
    OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, {}, &loss), done);
    loss->scalar<float>()() = 0.5f;
    const auto duration = std::chrono::duration<float>(seconds_);
    // No thread of TensorFlow's pools is occupied meanwhile.
    std::thread([duration, done] {
      std::this_thread::sleep_for(duration);
      done();
    }).detach();
  }

 private:
  float seconds_;
};

REGISTER_KERNEL_BUILDER(Name("AcceleratorStep").Device(tensorflow::DEVICE_CPU), AcceleratorStep);
