// A digest of the headers and schemas that the CPU and the CUDA library share. It is in its own section, so
// that rltrain can compare both digests before loading the second library.
namespace {

[[gnu::used, gnu::section(".rltrain")]] const char stamp[] = RLT_STAMP;

}  // namespace
