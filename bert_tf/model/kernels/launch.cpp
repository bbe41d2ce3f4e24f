// Launches compiled GPU kernels from programs that XLA has compiled, through XLA's custom calls.
//
// No header of CUDA or TensorFlow is needed: the driver's functions are looked up in libcuda.so.1 when the first kernel
// is added, and TensorFlow's, whose addresses Python passes, are declared here.

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// As in TensorFlow's xla/service/custom_call_status_internal.h: a message means failure.
struct XlaCustomCallStatus_ {
  std::optional<std::string> message;
};

namespace {

using Result = int;  // CUresult; 0 is success
using Handle = void*;  // CUcontext, CUmodule, CUfunction, CUstream

struct Driver {
  Result (*init)(unsigned);
  Result (*stream_context)(Handle stream, Handle* context);
  Result (*push_context)(Handle context);
  Result (*pop_context)(Handle* context);
  Result (*load_module)(Handle* module, const void* image);
  Result (*get_function)(Handle* function, Handle module, const char* name);
  Result (*set_attribute)(Handle function, int attribute, int value);
  Result (*launch)(Handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, Handle stream, void** parameters,
                   void** extra);
  Result (*error_text)(Result error, const char** text);
};

Driver driver;
constexpr int kMaxDynamicSharedBytes = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr unsigned kThreadsOfWarp = 32;
constexpr int kScratchPointers = 2;  // Triton's last parameters, which our kernels do not use

struct Kernel {
  std::string image, name;
  unsigned num_threads, shared_bytes;
  std::map<Handle, Handle> functions;  // by context
};

// How a custom call launches a kernel: the fields of its backend_config.
struct Launch {
  int32_t kernel, grid[3], num_buffers;
};

std::mutex lock;  // of `kernels` and of the functions in them
std::deque<Kernel> kernels;

std::string describe(Result error) {
  const char* text = nullptr;
  if (driver.error_text) driver.error_text(error, &text);
  return text ? text : "error " + std::to_string(error);
}

// The kernel's function in a context, which is the current one. Empty text: it was found.
std::string find_function(Kernel& kernel, Handle context, Handle* function) {
  const std::lock_guard<std::mutex> guard(lock);
  Handle& known = kernel.functions[context];
  if (!known) {
    Handle module, loaded;
    if (const Result error = driver.load_module(&module, kernel.image.data())) return describe(error);
    if (const Result error = driver.get_function(&loaded, module, kernel.name.c_str())) return describe(error);
    if (const Result error = driver.set_attribute(loaded, kMaxDynamicSharedBytes, kernel.shared_bytes))
      return describe(error);
    known = loaded;
  }
  *function = known;
  return "";
}

std::string launch(Handle stream, void** buffers, const Launch& how) {
  Kernel* kernel;
  {
    const std::lock_guard<std::mutex> guard(lock);
    if (how.kernel < 0 || static_cast<size_t>(how.kernel) >= kernels.size()) return "unknown kernel";
    kernel = &kernels[how.kernel];
  }
  Handle context = nullptr, function = nullptr;
  if (const Result error = driver.stream_context(stream, &context)) return describe(error);
  if (const Result error = driver.push_context(context)) return describe(error);
  std::string failure = find_function(*kernel, context, &function);
  if (failure.empty()) {
    void* nothing = nullptr;
    std::vector<void*> parameters;
    for (int number = 0; number < how.num_buffers; ++number) parameters.push_back(&buffers[number]);
    for (int number = 0; number < kScratchPointers; ++number) parameters.push_back(&nothing);
    const Result error = driver.launch(function, how.grid[0], how.grid[1], how.grid[2], kernel->num_threads, 1, 1,
                                       kernel->shared_bytes, stream, parameters.data(), nullptr);
    if (error) failure = describe(error);
  }
  driver.pop_context(&context);
  return failure.empty() ? "" : kernel->name + ": " + failure;
}

// The custom call's target on GPUs.
void run_on_gpu(Handle stream, void** buffers, const char* config, size_t size, XlaCustomCallStatus_* status) {
  Launch how{};
  const std::string text(config, size);
  const int num_read = std::sscanf(text.c_str(), "%d %d %d %d %d", &how.kernel, &how.grid[0], &how.grid[1],
                                   &how.grid[2], &how.num_buffers);
  std::string failure = num_read == 5 ? launch(stream, buffers, how) : "wrong backend_config: " + text;
  if (!failure.empty()) status->message = std::move(failure);
}

}  // namespace

extern "C" {

// Looks the driver up. Returns what is missing, or an empty text.
const char* load_driver() {
  static std::string missing;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!library) return "libcuda.so.1";
  const std::pair<const char*, void**> functions[] = {
      {"cuInit", reinterpret_cast<void**>(&driver.init)},
      {"cuStreamGetCtx", reinterpret_cast<void**>(&driver.stream_context)},
      {"cuCtxPushCurrent_v2", reinterpret_cast<void**>(&driver.push_context)},
      {"cuCtxPopCurrent_v2", reinterpret_cast<void**>(&driver.pop_context)},
      {"cuModuleLoadData", reinterpret_cast<void**>(&driver.load_module)},
      {"cuModuleGetFunction", reinterpret_cast<void**>(&driver.get_function)},
      {"cuFuncSetAttribute", reinterpret_cast<void**>(&driver.set_attribute)},
      {"cuLaunchKernel", reinterpret_cast<void**>(&driver.launch)},
      {"cuGetErrorString", reinterpret_cast<void**>(&driver.error_text)},
  };
  for (const auto& [name, address] : functions) {
    *address = dlsym(library, name);
    if (!*address) return name;
  }
  return "";
}

// Registers a target for XLA's custom calls. `global` and `add` are the addresses of CustomCallTargetRegistry::Global
// and ::Register; `target` null is that for GPUs.
void register_target(void* global, void* add, const char* name, void* target, const char* platform) {
  void* registry = reinterpret_cast<void* (*)()>(global)();
  void* address = target ? target : reinterpret_cast<void*>(&run_on_gpu);
  reinterpret_cast<void (*)(void*, const std::string&, void*, const std::string&)>(add)(registry, name, address,
                                                                                     platform);
}

// Returns the number by which custom calls name the kernel.
int32_t add_kernel(const char* image, size_t size, const char* name, int32_t num_warps, int32_t shared_bytes) {
  const std::lock_guard<std::mutex> guard(lock);
  kernels.push_back({std::string(image, size), name, num_warps * kThreadsOfWarp, static_cast<unsigned>(shared_bytes),
                     {}});
  return static_cast<int32_t>(kernels.size() - 1);
}

}  // extern "C"
