// In the place of gloo's header, which libtorch does not ship: ProcessGroupGloo.hpp wants it to be there.
#pragma once
