// A driver of GPUs for tests, in place of libcuda.so.1: it writes down what it is asked, and answers as it is told to.
// And what the launcher needs of TensorFlow.

#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

namespace {

std::string asked;
std::string failing;  // the name of the function that fails
void* target;

int answer(const std::string& name, const std::string& details = "") {
  asked += name + details + "\n";
  return name == failing ? 7 : 0;
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return answer("cuInit"); }
int cuStreamGetCtx(void* stream, void** context) {
  *context = stream;
  return answer("cuStreamGetCtx");
}
int cuCtxPushCurrent_v2(void*) { return answer("cuCtxPushCurrent"); }
int cuCtxPopCurrent_v2(void**) { return answer("cuCtxPopCurrent"); }
int cuModuleLoadData(void** module, const void* image) {
  *module = const_cast<void*>(image);
  return answer("cuModuleLoadData", std::string(" ") + static_cast<const char*>(image));
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  *function = module;
  return answer("cuModuleGetFunction", std::string(" ") + name);
}
int cuFuncSetAttribute(void*, int attribute, int value) {
  return answer("cuFuncSetAttribute", " " + std::to_string(attribute) + " " + std::to_string(value));
}
#ifndef WITHOUT_LAUNCH
int cuLaunchKernel(void*, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned, unsigned, unsigned shared,
                   void* stream, void** parameters, void**) {
  char text[200];
  std::snprintf(text, sizeof text, " %u %u %u, %u threads, %u bytes, stream %zu, buffers %zu %zu, scratch %zu %zu", x,
                y, z, threads, shared, reinterpret_cast<size_t>(stream), *static_cast<size_t*>(parameters[0]),
                *static_cast<size_t*>(parameters[1]), *static_cast<size_t*>(parameters[2]),
                *static_cast<size_t*>(parameters[3]));
  return answer("cuLaunchKernel", text);
}
#endif
int cuGetErrorString(int error, const char** text) {
  static std::string last;
  last = "driver says " + std::to_string(error);
  *text = last.c_str();
  return 0;
}

void fail(const char* name) { failing = name; }
const char* take_asked() {
  static std::string taken;
  taken = asked;
  asked.clear();
  return taken.c_str();
}

// xla::CustomCallTargetRegistry::Global and ::Register.
void* registry() { return &target; }
void add(void* where, const std::string& name, void* function, const std::string& platform) {
  *static_cast<void**>(where) = function;
  answer("register", " " + name + " " + platform);
}

// Calls the registered function with two buffers; returns the message of its status.
const char* call(size_t stream, const char* config) {
  static std::optional<std::string> status;
  status.reset();
  void* buffers[] = {reinterpret_cast<void*>(11), reinterpret_cast<void*>(12)};
  reinterpret_cast<void (*)(void*, void**, const char*, size_t, void*)>(target)(
      reinterpret_cast<void*>(stream), buffers, config, std::strlen(config), &status);
  return status ? status->c_str() : "fine";
}

}  // extern "C"
