// Compiles one XLA program for a GPU that this machine need not have.
//
//   compile PROGRAM GPU
//
// PROGRAM: a serialised HloModuleProto, as TensorFlow lowers a compiled function. GPU: a GpuTargetConfigProto as text.
// What the compiler decided is written by its own flags (XLA_FLAGS=--xla_dump_to=... --xla_dump_hlo_as_text).
// Built and called by python -m benchmarks gpu_program; it takes XLA's public headers and its library from TensorFlow's wheel for GPUs.
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "google/protobuf/text_format.h"
#include "xla/autotune_results.pb.h"
#include "xla/debug_options_flags.h"
#include "xla/hlo/ir/hlo_module.h"
#include "xla/hlo/ir/hlo_module_group.h"
#include "xla/service/compiler.h"
#include "xla/service/gpu/gpu_target_config.h"
#include "xla/service/hlo.pb.h"
#include "xla/stream_executor/multi_platform_manager.h"

namespace xla::gpu {

// The one method used here of a class whose own header needs LLVM's, which are not in the wheel.
struct GpuCompiler {
  StatusOr<std::unique_ptr<HloModule>> RunHloPassesWithoutDevice(std::unique_ptr<HloModule>,
                                                                 const Compiler::CompileOptions&,
                                                                 const GpuTargetConfig&, const AutotuneResults&);
};

}  // namespace xla::gpu

namespace {

std::string ReadFile(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Ends without destructors, which take TensorFlow apart for seconds.
void Finish(int code, const std::string& words) {
  std::cerr << words << std::endl;
  _exit(code);
}

template <typename T>
T OrFail(xla::StatusOr<T> found) {
  if (!found.ok()) Finish(1, found.status().ToString());
  return *std::move(found);
}

}  // namespace

int main(int, char** arguments) {
  xla::HloModuleProto program;
  stream_executor::GpuTargetConfigProto described;
  if (!program.ParseFromString(ReadFile(arguments[1]))) Finish(1, "the program cannot be read");
  if (!google::protobuf::TextFormat::ParseFromString(ReadFile(arguments[2]), &described)) Finish(1, "no such GPU");
  const xla::gpu::GpuTargetConfig gpu(described);

  auto* platform = OrFail(stream_executor::MultiPlatformManager::PlatformWithName("CUDA", false));
  xla::Compiler* compiler = OrFail(xla::Compiler::GetForPlatform(platform));
  const auto config = OrFail(xla::HloModule::CreateModuleConfigFromProto(program, xla::GetDebugOptionsFromFlags()));
  // Every base class of GpuCompiler is its first, so that the pointer is the same.
  auto optimised = OrFail(reinterpret_cast<xla::gpu::GpuCompiler*>(compiler)->RunHloPassesWithoutDevice(
      OrFail(xla::HloModule::CreateFromProto(program, config)), {}, gpu, {}));
  xla::AotCompilationOptions options(compiler->PlatformId());
  options.set_target_config(gpu);
  options.set_run_backend_only(true);
  auto group = std::make_unique<xla::HloModuleGroup>(std::move(optimised));
  const auto machine_code = OrFail(OrFail(compiler->CompileAheadOfTime(std::move(group), options))[0]->SerializeAsString());
  // ptxas has assembled the kernels if there is an ELF file for NVIDIA's machines (number 190) in it.
  for (size_t at = 0; (at = machine_code.find("\x7f" "ELF", at)) != std::string::npos; ++at) {
    if (machine_code[at + 18] == '\xbe') Finish(0, "compiled");
  }
  Finish(1, "no machine code");
}
