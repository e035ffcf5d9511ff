// What two libraries must have been built from alike to be opened together: a digest of the headers and
// schemas that they share, in a section of its own, where it is read before the second one is opened.
namespace {

[[gnu::used, gnu::section(".rltrain")]] const char stamp[] = RLT_STAMP;

}  // namespace
